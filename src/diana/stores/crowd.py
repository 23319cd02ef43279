"""Which limit has the most keys: O(1), however many limits and keys there are.

When there is no more room, it is this one that has to give some up, so that a flood of keys under one rule cannot push out those of
another. Of limits with as many keys, those that have idle keys come before those whose keys are all blocked.

A limit's place is one number: twice its keys, and one more if some are idle. Limits in the same place stand in one row.
"""

from __future__ import annotations


class KeyCountIndex:
    def __init__(self) -> None:
        self._rows: dict[int, dict[int, None]] = {}
        self._highest = 0

    def move(self, table: int, before: int, after: int) -> None:
        """From one place to another; 0 is no place."""
        rows = self._rows
        if after:
            row = rows.get(after)
            if row is None:
                rows[after] = {table: None}
                if after > self._highest:
                    self._highest = after
            else:
                row[table] = None
        if before:
            row = rows[before]
            del row[table]
            if not row:
                del rows[before]
                # Step by step: a table loses one key at a time.
                while self._highest and self._highest not in rows:
                    self._highest -= 1

    def fullest(self) -> int:
        """The table with the most keys; of several the one that has been so for longest."""
        return next(iter(self._rows[self._highest]))
