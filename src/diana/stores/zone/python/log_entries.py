"""Logs in slots: a ring of entries, eight to a slot, found by way of two levels of slots that hold the numbers of others.

    key's slot  ─▶  2 tops  ─▶  32 directories each  ─▶  32 leaves each  ─▶  8 entries: moment, admitted up to it

So a log takes further slots as it grows and gives them back as it expires, any free slot will do, and one entry is found in three
steps. An algorithm is given a Log whose two columns read the zone as they are asked; what it appends is noted in them and written if all
pass. What it copied is written whole: that costs no more than what it dropped.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, cast

from diana.core.entry_log import NO_LOG, Log
from diana.stores.zone.python.entry_table import EXPIRES, LENGTH, LOG, NUMBERS, Damaged, EntryTable
from diana.stores.zone.python.zone_layout import LINE, Layout
from diana.stores.zone.python.zone_recovery import Undo

MOST_ENTRIES = 10_000
RING = 1 << 14
"""Entries that have a place; the log begins anywhere in it."""
NOTHING = bytes(LINE)
BEGIN, MANY, BEFORE, NEWEST, TOTAL, TOPS = range(6)
"""The numbers in the key's slot; then the two tops, as words."""

if TYPE_CHECKING:
    Numbers = array[int]


def slots_of_log(log: Log) -> int:
    """The most further slots that writing it may need."""
    moments, _, first, end, _, _, _ = log
    entries = len(moments.added) if isinstance(moments, Column) else end - first
    leaves = entries // 8 + 2
    return leaves + leaves // 32 + 2 + 2


class Column:
    """The moments of a log, or what was admitted up to each: an array, as far as Log uses one."""

    def __init__(self, logs: SlotLogs, offset: int, begin: int, many: int, place: int) -> None:
        self._logs = logs
        self._offset = offset
        self._begin = begin
        self._many = many
        self._place = place
        self.added: list[int] = []

    def __len__(self) -> int:
        return self._many + len(self.added)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return array("q", [self[each] for each in range(*at.indices(len(self)))])
        if at < 0:
            at += len(self)
        if at >= self._many:
            return self.added[at - self._many]
        return self._logs.entry(self._offset, self._begin + at, self._place)

    def append(self, value: int) -> None:
        self.added.append(value)


class SlotLogs:
    def __init__(self, layout: Layout, table: EntryTable, undo: Undo) -> None:
        self._layout = layout
        self._table = table
        self._undo = undo

    def read(self, offset: int) -> Log:
        """The log of a key's slot."""
        longs, at = self._layout.longs, (offset + NUMBERS) >> 3
        begin, many, before, newest, total = longs[at : at + TOPS]
        if not (0 <= begin < RING and 0 <= many < RING):
            raise Damaged("a log without bounds")
        if total == before:
            return NO_LOG
        moments = cast("Numbers", Column(self, offset, begin, many, 0))
        through = cast("Numbers", Column(self, offset, begin, many, 1))
        return Log(moments, through, 0, many, before, newest, total)

    def entry(self, offset: int, number: int, column: int) -> int:
        leaf = self._leaf(offset, (number & (RING - 1)) >> 3)
        if not leaf:
            raise Damaged("an entry is missing")
        return self._layout.longs[(self._table.offset(leaf) >> 3) + (number & 7) * 2 + column]

    def write(self, slot: int, log: Log, expires_us: int) -> None:
        """Instead of what the slot holds, which is the log this one was made from, or none."""
        layout, undo = self._layout, self._undo
        offset = self._table.offset(slot)
        undo.note(offset)
        at = (offset + NUMBERS) >> 3
        if layout.words[(offset + LENGTH) >> 2] != LOG:
            layout.longs[at : at + TOPS] = array("q", [0] * TOPS)
            layout.words[(offset + LENGTH) >> 2] = LOG
        begin, had = layout.longs[at + BEGIN], layout.longs[at + MANY]
        moments, through, first, end, before, newest, total = log
        if isinstance(moments, Column):
            self._write(slot, begin, had, moments, through, end)
            self._drop(slot, begin, begin + first)
            if end < had:
                self._drop_end(slot, begin + end, begin + had)
        else:
            self._drop(slot, begin, begin + had, last=True)
            begin = begin if end > first else 0
            self._write(slot, begin - first, first, moments, through, end)
            begin -= first
        many = end - first
        if many > MOST_ENTRIES:
            raise OverflowError(f"{many} entries")
        layout.longs[at + BEGIN] = (begin + first) & (RING - 1)
        layout.longs[at + MANY] = many
        layout.longs[at + BEFORE] = before
        layout.longs[at + NEWEST] = newest
        layout.longs[at + TOTAL] = total
        layout.longs[(offset + EXPIRES) >> 3] = expires_us

    def drop(self, slot: int) -> None:
        """All that it uses beside its own slot."""
        at = (self._table.offset(slot) + NUMBERS) >> 3
        begin, many = self._layout.longs[at + BEGIN], self._layout.longs[at + MANY]
        if not (0 <= begin < RING and 0 <= many < RING):
            raise Damaged("a log without bounds")
        self._drop(slot, begin, begin + many, last=True)

    def _write(
        self,
        slot: int,
        begin: int,
        written: int,
        moments: Any,
        through: Any,
        end: int,
    ) -> None:
        """The entries from `written` to before `end`."""
        longs = self._layout.longs
        for each in range(written, end):
            number = begin + each
            leaf = self._grown_to(slot, (number & (RING - 1)) >> 3)
            place = self._table.offset(leaf)
            self._undo.note(place)
            at = (place >> 3) + (number & 7) * 2
            longs[at] = moments[each]
            longs[at + 1] = through[each]

    def _pointers(self, offset: int, leaf: int) -> tuple[int, int, int]:
        """Where the number of its top, its directory and itself stands, as words; 0 where there is none yet."""
        words, place_of = self._layout.words, self._table.offset
        top_at = ((offset + NUMBERS) >> 2) + 2 * TOPS + (leaf >> 10)
        top = words[top_at]
        if not top:
            return top_at, 0, 0
        directory_at = (place_of(top) >> 2) + ((leaf >> 5) & 31)
        directory = words[directory_at]
        if not directory:
            return top_at, directory_at, 0
        return top_at, directory_at, (place_of(directory) >> 2) + (leaf & 31)

    def _leaf(self, offset: int, leaf: int) -> int:
        at = self._pointers(offset, leaf)[2]
        return self._layout.words[at] if at else 0

    def _grown_to(self, slot: int, leaf: int) -> int:
        offset, words = self._table.offset(slot), self._layout.words
        while True:
            for at in self._pointers(offset, leaf):
                if not at or not words[at]:
                    break
            else:
                return words[at]
            at = next(at for at in reversed(self._pointers(offset, leaf)) if at)
            (further,) = self._table.allocate(slot, 1)
            place = self._table.offset(further)
            self._layout.mapping[place : place + LINE] = NOTHING
            self._undo.note(at * 4)
            words[at] = further

    def _drop(self, slot: int, begin: int, end: int, last: bool = False) -> None:
        """The leaves of which every entry lies in between; with `last`, also the one that the end lies in."""
        after = (end + 7) >> 3 if last else end >> 3
        for leaf in range(begin >> 3, after):
            self._drop_leaf(slot, leaf & ((RING >> 3) - 1))

    def _drop_end(self, slot: int, end: int, had: int) -> None:
        for leaf in range((end + 7) >> 3, (had + 7) >> 3):
            self._drop_leaf(slot, leaf & ((RING >> 3) - 1))

    def _drop_leaf(self, slot: int, leaf: int) -> None:
        """And what pointed to it, if it points to nothing else."""
        layout, table = self._layout, self._table
        limit = table.limit_of(slot)
        pointers = self._pointers(table.offset(slot), leaf)
        for at in reversed(pointers):
            if not at or not layout.words[at]:
                continue
            self._undo.note(at * 4)
            table.free(layout.words[at], limit)
            layout.words[at] = 0
            if at == pointers[0]:
                break
            line = at * 4 & -LINE
            if layout.mapping[line : line + LINE] != NOTHING:
                break
