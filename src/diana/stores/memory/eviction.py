"""Which keys expire next (`ExpiryQueue`), and which limit has the most keys (`KeyCountIndex`): no scan, no timer.

*Expiry*, amortised O(1). Moments are coarse (about four seconds). A heap orders the time buckets; each bucket is a queue of one owner's
keys. Putting a key into an existing bucket, nearly always the case, is one append. A heap for each owner orders its own buckets, so that
the next key of a single owner is found, too.

*Most keys*, O(1). When there is no more room, the limit with the most keys loses some, so that a flood of keys under one rule cannot push
out those of another. Of limits with as many keys, those that have idle keys come before those whose keys are all blocked. The rank of a
limit is one number: twice its keys, and one more if some are idle. Limits of the same rank are in one row.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

Owner = TypeVar("Owner")
Key = TypeVar("Key")

SLOT_BITS = 22
"""A slot is 2**22 µs long."""
NO_TIME = 1 << 62


class TimeBucket(NamedTuple):
    number: int
    owner: int


class ExpiryQueue(Generic[Owner, Key]):
    """Keys of several owners, earliest slot first. An owner is known by its place in `owners`."""

    def __init__(self, owners: list[Owner]) -> None:
        self._owners = owners
        self._queues: dict[TimeBucket, deque[Key]] = {}
        self._order: list[TimeBucket] = []
        """All slots, those that were emptied before their time too; but never one of those first."""
        self._of_owner: dict[int, list[int]] = {}
        """Numbers of slots that hold anything."""
        self.due = NO_TIME
        """When the earliest slot is past."""

    def __bool__(self) -> bool:
        return bool(self._order)

    def holds(self, owner: int) -> bool:
        """Whether there is a key of this owner."""
        return owner in self._of_owner

    def put(self, when_us: int, owner: int, key: Key) -> None:
        slot = TimeBucket(when_us >> SLOT_BITS, owner)
        queue = self._queues.get(slot)
        if queue is None:
            queue = self._queues[slot] = deque()
            heappush(self._order, slot)
            self.due = (self._order[0].number + 1) << SLOT_BITS
        if not queue:
            heappush(self._of_owner.setdefault(owner, []), slot.number)
        queue.append(key)

    def pop(self) -> tuple[TimeBucket, Owner, Key]:
        """The key that has waited longest in the earliest slot."""
        return self._pop(self._order[0])

    def pop_of(self, owner: int) -> tuple[TimeBucket, Owner, Key]:
        """The same among the keys of one owner."""
        return self._pop(TimeBucket(self._of_owner[owner][0], owner))

    def _pop(self, slot: TimeBucket) -> tuple[TimeBucket, Owner, Key]:
        """From a slot that is the earliest of its owner."""
        queue = self._queues[slot]
        key = queue.popleft()
        if not queue:
            order = self._of_owner[slot.owner]
            heappop(order)
            if not order:
                del self._of_owner[slot.owner]
            while self._order and not self._queues[self._order[0]]:
                del self._queues[heappop(self._order)]
            self.due = (self._order[0].number + 1) << SLOT_BITS if self._order else NO_TIME
        return slot, self._owners[slot.owner], key


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
