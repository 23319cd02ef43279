"""The states of counters in a zone: read, written with all that belongs to them, and room made for new ones."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import Any

from diana.core.charge import Charges
from diana.core.contracts import Numbers, State
from diana.core.counter import CounterSpec
from diana.core.entry_log import Log
from diana.core.errors import ConfigError
from diana.stores.zone.python.entry_table import (
    BLOCKED,
    EXPIRES,
    HERE,
    IDLE,
    LENGTH,
    LOG,
    OPEN,
    PACK,
    THERE,
    EntryTable,
    TooSmall,
)
from diana.stores.zone.python.known_limits import KnownLimits, unfit
from diana.stores.zone.python.log_entries import SlotLogs, slots_of_log
from diana.stores.zone.python.zone_layout import (
    LINE,
    Layout,
)
from diana.stores.zone.python.zone_recovery import Undo

GRACE_US = 1 << 25
"""A key is kept for half a minute more, like in memory."""
FEW_LINES = 1_000


class CounterStates:
    """All under the zone's lock."""

    def __init__(
        self, name: str, layout: Layout, undo: Undo, table: EntryTable, limits: KnownLimits
    ) -> None:
        self._name = name
        self._layout = layout
        self._undo = undo
        self._table = table
        self._limits = limits
        self._logs = SlotLogs(layout, table, undo)
        table.drop_log = self._logs.drop
        table.standing = self._standing
        self._hot = (
            layout.mapping,
            layout.longs,
            layout.undo_count,
            layout.undo_places,
            layout.undo_lines,
        )

    def look_up(self, charges: Charges) -> list[tuple[bytes, int, State | None]]:
        """Of each counter its hash, where its slot begins, and its state."""
        found = []
        for meter, key, _ in charges:
            digest = self._limits.digests.get((meter.id, key)) or self._limits.digest(meter, key)
            offset = self._table.find(digest)
            found.append((digest, offset, self.read(offset) if offset else None))
        return found

    def read(self, offset: int) -> State:
        if self._layout.words[(offset + LENGTH) >> 2] == LOG:
            return self._logs.read(offset)
        return self._table.numbers(self.slot(offset))

    def write_here(
        self, meter: CounterSpec, offset: int, numbers: Numbers, now: int, reset_us: int
    ) -> None:
        """As many as stand there: what `undo.note`, `write_numbers` and `undo.done` do, in a third of their time."""
        mapping, longs, undo_count, undo_places, undo_lines = self._hot
        expires_us = longs[(offset + EXPIRES) >> 3]
        if expires_us < now + reset_us or not reset_us:
            expires_us = now + reset_us
        mapping[undo_lines : undo_lines + LINE] = mapping[offset : offset + LINE]
        longs[undo_places] = offset
        longs[undo_count] = 1
        try:
            PACK[len(numbers)](mapping, offset + EXPIRES, expires_us, *numbers)
        except struct.error:
            raise unfit(meter) from None
        longs[undo_count] = 0

    def write_all(
        self, written: Collection[tuple[CounterSpec, bytes, int, State, tuple[Any, ...]]], now: int
    ) -> None:
        table, undo = self._table, self._undo
        kept = {self.slot(offset) for _, _, offset, _, _ in written if offset}
        if len(kept) < len(written) or any(
            len(state) > HERE or isinstance(state, Log) for _, _, _, state, _ in written
        ):
            self._make_room(written, kept, now)
        for meter, digest, offset, state, outcome in written:
            if offset:
                slot = self.slot(offset)
            else:
                slot = table.add(digest, self._limits.number(meter))
            reset_us = _reset_us(meter, state, outcome, now)
            expires_us = now + reset_us
            if reset_us:
                expires_us = max(expires_us, self._expires_us(table.offset(slot)))
            if isinstance(state, Log):
                self._logs.write(slot, state, expires_us)
            else:
                self._write_numbers(meter, slot, state, expires_us)
            owner = self._layout.owners + slot
            undo.note(owner)
            blocked = not outcome[1]
            self._layout.mapping[owner] = ((self._layout.mapping[owner] - 1) & ~1) + 1 + blocked
            if undo.lines > FEW_LINES:
                undo.done()
        undo.done()

    def _expires_us(self, offset: int) -> int:
        """When the key is as good as never seen, to the slowest limit that has asked."""
        return self._layout.longs[(offset + EXPIRES) >> 3]

    def note_denial(self, offset: int, until_us: int) -> None:
        """A slower limit than the last one to charge the key needs it for longer."""
        if offset and self._expires_us(offset) < until_us:
            self._layout.longs[(offset + EXPIRES) >> 3] = until_us

    def _write_numbers(self, meter: CounterSpec, slot: int, state: Any, expires_us: int) -> None:
        try:
            self._table.write_numbers(slot, state, expires_us)
        except (struct.error, TypeError, ValueError, IndexError):
            self._undo.roll_back()
            raise unfit(meter) from None

    def _make_room(
        self,
        written: Iterable[tuple[CounterSpec, bytes, int, State, tuple[Any, ...]]],
        kept: Collection[int],
        now: int,
    ) -> None:
        self._table.check()
        wanted, new = 0, False
        for meter, _, offset, state, _ in written:
            if not offset:
                self._limits.check_new(meter)
                self._limits.number(meter)
                new = True
                wanted += 1
            if isinstance(state, Log):
                wanted += slots_of_log(state)
            else:
                wanted += -(-max(0, len(state) - HERE) // THERE)
        self._undo.done()
        if new:
            self._table.sweep(now, kept)
        if wanted:
            try:
                self._table.reserve(wanted, now, kept)
            except TooSmall:
                raise ConfigError(
                    f"zone {self._name} is too small for what one request needs; write a larger size="
                ) from None

    def _standing(self, slot: int, now: int) -> int:
        """By its own limit, if this process knows it; else by what was written with it."""
        offset = self._table.offset(slot)
        expires_us = self._expires_us(offset)
        owner = self._layout.mapping[self._layout.owners + slot]
        blocked = not owner & 1
        if expires_us + GRACE_US > now and not blocked:
            return OPEN
        meter = self._limits.limit_of((owner - 1) >> 1)
        if meter is None:
            return IDLE if expires_us + GRACE_US <= now else BLOCKED
        state = self.read(offset)
        if expires_us + GRACE_US <= now and meter.decide(state, meter.params, 0, now)[1][3] <= 0:
            return IDLE
        return OPEN if meter.decide(state, meter.params, 1, now)[1][0] else BLOCKED

    def slot(self, offset: int) -> int:
        return (offset - self._layout.first_slot) // LINE


def _reset_us(meter: CounterSpec, state: State, outcome: tuple[Any, ...], now: int) -> int:
    """When the key is as good as never seen: of a rule's tiers and overrides, by the one that remembers longest."""
    if meter.family is None or meter.family.longest is None:
        reset: int = outcome[3]
        return reset
    longest = meter.family.longest
    return longest.decide(state, longest.params, 0, now)[1][3]
