"""A zone without a line of C: one count for all processes, in Python, behind a lock on the zone's file.

One lock for the whole zone. It is held for a few microseconds, so that even dozens of workers seldom meet; and with it several charges
are all or nothing without an order of locks, and what is evicted is chosen among all keys. The kernel gives it up when its process
dies, and `zone_recovery` restores what that process had begun. A process that is stopped (SIGSTOP, a debugger) in those microseconds makes
the others wait.

A key is not written down, only its hash, keyed with a secret of the zone: slots have one size, and who cannot read the zone cannot make
two keys meet. When a state will be as good as none is written with it: another process may not know the limit it belongs to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from mmap import mmap
from time import monotonic_ns, sleep
from typing import Any, TypeVar

from diana.core.charge import ONE, Charges, checked_cost, decide_all_or_nothing
from diana.core.contracts import Clock, Numbers, StateSwap, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.runtime.fork import acquiring, refuse_reentry
from diana.stores.zone.python.counter_states import CounterStates
from diana.stores.zone.python.entry_table import (
    HERE,
    LENGTH,
    NUMBERS,
    UNPACK,
    Damaged,
    EntryTable,
)
from diana.stores.zone.python.known_limits import KnownLimits
from diana.stores.zone.python.zone_layout import (
    EVICTIONS,
    GENERATION,
    KEYS,
    LINE,
    USED,
    Layout,
)
from diana.stores.zone.python.zone_recovery import Undo, ZoneLock
from diana.stores.zone.zone_file import ZoneFile
from diana.stores.zone.zone_header import BODY

log = logging.getLogger("diana")

COURTESY_SECONDS = 0.000_05
"""Who has had the lock while others wait lets them run first: of those in the turnstile, too, the one that runs is faster than the ones
that have to be woken."""
EMPTYING = -1
"""As the number of lines to undo."""

T = TypeVar("T")

_new = tuple.__new__


class PythonZone:
    kind = "python"
    shared = True

    def __init__(self, file: ZoneFile) -> None:
        self._file = file
        self._layout = layout = Layout(file.mapping)
        self._undo = Undo(layout)
        self._table = EntryTable(layout, self._undo)
        self._limits = KnownLimits(self._table, file.header.secret)
        self._states = CounterStates(file.name, layout, self._undo, self._table, self._limits)
        self._offset_us = file.header.epoch_offset_us
        self._hot = layout.mapping, layout.words, layout.owners - layout.first_slot // LINE
        self.name = file.name
        self._lock = ZoneLock(layout, file.descriptor)
        self._waiting = layout.waiting
        # A loop over acquire: no signal can strike between the taking and the `try`.
        self._acquiring, self._release = acquiring(file.lock), file.lock.release

    @staticmethod
    def lay_out(mapping: mmap) -> None:
        """All zeros is an empty zone."""

    def check_meter(self, meter: CounterSpec) -> None:
        """ConfigError if a state of this limit may not fit."""
        self._limits.check_meter(meter)

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        self._limits.check_new(meter)
        under_lock, decide_one = self._under_lock, self._decide_one

        def take(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            return under_lock(decide_one, meter, key, cost, None if clock is None else clock())

        return take

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        if len(charges) == 1:
            return [self._under_lock(self._decide_one, *charges[0], now)]
        return self._under_lock(self._decide_all, charges, now) if charges else []

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self._under_lock(self._peek, charges, now) if charges else []

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        self._under_lock(self._refund, charges, at, now)

    def renew(self, charge: tuple[CounterSpec, str, int], at: int, now: int | None = None) -> int:
        return self._under_lock(self._renew, charge, at, now)

    def reset(self, meter: CounterSpec, key: str) -> None:
        self._under_lock(self._reset, meter, key)

    def read(self, meter: CounterSpec, keys: Sequence[str]) -> list[Numbers | None]:
        return self._under_lock(self._read_numbers, meter, keys)

    def swap(self, meter: CounterSpec, swaps: Sequence[StateSwap], now: int, lasts_us: int) -> bool:
        return self._under_lock(self._swap, meter, swaps, now, lasts_us)

    def change(
        self,
        meter: CounterSpec,
        key: str,
        act: Callable[[Numbers | None], tuple[Numbers | None, T]],
    ) -> T:
        """Kept for as long as its algorithm says."""
        result: T = self._under_lock(self._change, meter, key, act)
        return result

    def clear(self) -> None:
        """Forget every key, for every process."""
        self._under_lock(self._empty)

    def close(self) -> None:
        """The zone stays; it is let go of with the last reference."""

    def counts(self) -> dict[str, int]:
        control = self._table.control
        return {
            "slots": self._layout.slots,
            "used": control[USED],
            "keys": control[KEYS],
            "evictions": control[EVICTIONS],
        }

    def limits(self) -> list[tuple[str, int]]:
        """How many slots each limit uses."""
        return self._under_lock(lambda: list(self._table.limits()))

    def _under_lock(self, act: Callable[..., T], *arguments: Any) -> T:
        """With the zone to ourselves, and everything in it whole."""
        longs, undo_count, waiting = self._layout.longs, self._layout.undo_count, self._waiting
        lock, emptied, entered = self._lock, False, False
        while True:
            for locked in self._acquiring:
                if not locked:
                    refuse_reentry(self)
                    continue
                try:
                    for _ in lock.waited if longs[waiting] else lock.tried:
                        try:
                            entered = True
                            if longs[undo_count]:
                                self._put_right()
                            return act(*arguments)
                        except Damaged as damage:
                            if emptied:
                                raise
                            log.error("zone %s is damaged (%s), and emptied", self.name, damage)
                            emptied, entered = True, False
                            self._empty()
                        finally:
                            lock.release()
                        break
                except OSError as error:
                    if entered or not lock.is_busy(error):
                        raise
                finally:
                    self._release()
                    if longs[waiting]:
                        sleep(COURTESY_SECONDS)
                break

    def _decide_one(self, meter: CounterSpec, key: str, cost: int, now: int | None) -> Decision:
        if cost is not ONE:
            checked_cost(cost)
        if now is None:
            now = monotonic_ns() // 1_000 + self._offset_us
        digest = self._limits.digests.get((meter.id, key)) or self._limits.digest(meter, key)
        offset = self._table.find(digest)
        params = meter.params
        if offset:
            mapping, words, owners = self._hot
            length = words[(offset + LENGTH) >> 2]
            if length <= HERE:
                state = UNPACK[length](mapping, offset + NUMBERS)
                after, outcome = meter.decide(state, params, cost, now)
                if after is not state and cost:
                    if self._limits.current.get(meter.id) is not meter:
                        self._limits.remember(meter)
                    if (
                        after.__class__ is not tuple
                        or len(after) != length
                        or meter.family is not None
                    ):
                        self._states.write_all([(meter, digest, offset, after, outcome)], now)  # type: ignore[list-item]
                    else:
                        self._states.write_here(meter, offset, after, now, outcome[3])  # type: ignore[arg-type]
                        owner = owners + offset // LINE
                        known = mapping[owner]
                        if known & 1 if not outcome[1] else not known & 1:
                            mapping[owner] = known + 1 if known & 1 else known - 1
                elif not outcome[0]:
                    self._states.note_denial(offset, now + outcome[3])
                return _new(Decision, (outcome, params.limit, key, cost, now, False))
        before = self._states.read(offset) if offset else None
        after, outcome = meter.decide(before, params, cost, now)
        if after is not before and after is not None and cost:
            self._states.write_all([(meter, digest, offset, after, outcome)], now)
        elif not outcome[0]:
            self._states.note_denial(offset, now + outcome[3])
        return _new(Decision, (outcome, params.limit, key, cost, now, False))

    def _decide_all(self, charges: Charges, now: int | None) -> list[Decision]:
        if now is None:
            now = monotonic_ns() // 1_000 + self._offset_us
        found = self._states.look_up(charges)
        decisions, after = decide_all_or_nothing(charges, [state for _, _, state in found], now)
        written = [
            (charge[0], digest, offset, state, decision.outcome)
            for charge, (digest, offset, _), state, decision in zip(
                charges, found, after, decisions, strict=True
            )
            if state is not None
        ]
        for (_, offset, _), state, decision in zip(found, after, decisions, strict=True):
            if state is None and not decision:
                self._states.note_denial(offset, now + decision.outcome[3])
        if written:
            self._states.write_all(written, now)
        return decisions

    def _peek(self, charges: Charges, now: int | None) -> list[Decision]:
        if now is None:
            now = monotonic_ns() // 1_000 + self._offset_us
        return decide_all_or_nothing(
            charges, [state for _, _, state in self._states.look_up(charges)], now
        )[0]

    def _refund(self, charges: Charges, at: int, now: int | None) -> None:
        if now is None:
            now = monotonic_ns() // 1_000 + self._offset_us
        for meter, key, cost in charges:
            digest = self._limits.digest(meter, key)
            offset = self._table.find(digest)
            if offset:
                after = meter.algorithm.refund(
                    self._states.read(offset), meter.params, cost, at, now
                )
                outcome = meter.decide(after, meter.params, 0, now)[1]
                self._states.write_all([(meter, digest, offset, after, outcome)], now)

    def _renew(self, charge: tuple[CounterSpec, str, int], at: int, now: int | None) -> int:
        if now is None:
            now = monotonic_ns() // 1_000 + self._offset_us
        meter, _, cost = charge
        algorithm: Any = meter.algorithm
        ((digest, offset, state),) = self._states.look_up([charge])
        after, moment = algorithm.renew(state, meter.params, cost, at, now)
        if moment:
            outcome = meter.decide(after, meter.params, 0, now)[1]
            self._states.write_all([(meter, digest, offset, after, outcome)], now)
        return int(moment)

    def _reset(self, meter: CounterSpec, key: str) -> None:
        offset = self._table.find(self._limits.digest(meter, key))
        if offset:
            self._table.forget(self._states.slot(offset))
            self._undo.done()

    def _read_numbers(self, meter: CounterSpec, keys: Sequence[str]) -> list[Any]:
        return [state for _, _, state in self._states.look_up([(meter, key, 0) for key in keys])]

    def _swap(
        self, meter: CounterSpec, swaps: Sequence[StateSwap], now: int, lasts_us: int
    ) -> bool:
        found = self._states.look_up([(meter, key, 0) for key, _, _ in swaps])
        if [state for _, _, state in found] != [before for _, before, _ in swaps]:
            return False
        outcome = (True, 1, 0, lasts_us, 0)
        self._states.write_all(
            [
                (meter, digest, offset, after, outcome)
                for (digest, offset, _), (_, _, after) in zip(found, swaps, strict=True)
            ],
            now,
        )
        return True

    def _change(
        self, meter: CounterSpec, key: str, act: Callable[[Any], tuple[Numbers | None, T]]
    ) -> T:
        ((digest, offset, before),) = self._states.look_up([(meter, key, 0)])
        after, result = act(before)
        if after is not before and after is not None:
            now = monotonic_ns() // 1_000 + self._offset_us
            outcome = meter.decide(after, meter.params, 0, now)[1]
            if before is not None and len(after) == len(before) <= HERE:
                self._states.write_here(meter, offset, after, now, outcome[3])
            else:
                self._states.write_all([(meter, digest, offset, after, outcome)], now)
        return result

    def _put_right(self) -> None:
        """Who had the lock before was interrupted."""
        if self._layout.longs[self._layout.undo_count] == EMPTYING:
            self._empty()
        else:
            self._undo.roll_back()

    def _empty(self) -> None:
        layout = self._layout
        layout.longs[layout.undo_count] = EMPTYING
        generation = self._table.control[GENERATION] + 1
        _zero(layout.mapping, BODY + LINE, layout.undo_places * 8)
        _zero(layout.mapping, layout.owners, layout.first_slot + LINE)
        self._table.control[GENERATION] = generation
        self._undo.done()
        self._limits.forget_numbers()


def _zero(mapping: mmap, begin: int, end: int) -> None:
    """Owners and heads lie beside each other, and may be long."""
    for place in range(begin, end, 1 << 20):
        many = min(1 << 20, end - place)
        mapping[place : place + many] = bytes(many)
