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
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from mmap import mmap
from time import monotonic_ns, sleep
from typing import Any, TypeVar

from diana.core.charge import ONE, Charges, checked_cost, decide_all_or_nothing
from diana.core.contracts import Clock, Numbers, State, StateSwap, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.entry_log import Log
from diana.core.errors import ConfigError, KeyTypeError
from diana.runtime.fork import acquiring, refuse_reentry
from diana.stores.zone.entry_limit import too_many_entries
from diana.stores.zone.python.entry_table import (
    BLOCKED,
    EXPIRES,
    HERE,
    IDLE,
    LENGTH,
    LOG,
    MOST_NUMBERS,
    NUMBERS,
    OPEN,
    PACK,
    THERE,
    UNPACK,
    Damaged,
    EntryTable,
    TooSmall,
)
from diana.stores.zone.python.log_entries import MOST_ENTRIES, SlotLogs, slots_of_log
from diana.stores.zone.python.zone_layout import (
    EVICTIONS,
    GENERATION,
    KEYS,
    LINE,
    MOST_LIMITS,
    USED,
    Layout,
)
from diana.stores.zone.python.zone_recovery import Undo, ZoneLock
from diana.stores.zone.zone_file import BODY, ZoneFile

log = logging.getLogger("diana")

MOST_DIGESTS = 10_000
"""Hashes of keys that are remembered: the same few clients ask again and again."""
MOST_METERS = 20_000
GRACE_US = 1 << 25
"""A key is kept for half a minute more, like in memory."""
FEW_LINES = 1_000
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
        self._logs = SlotLogs(layout, self._table, self._undo)
        self._table.drop_log = self._logs.drop
        self._table.standing = self._standing
        self._offset_us = file.header.epoch_offset_us
        self._digests: dict[tuple[str, str], bytes] = {}
        self._meters: dict[str, tuple[int, int]] = {}
        """By id: the number of its limit, and the generation of numbers it is of."""
        self._fit: set[CounterSpec] = set()
        self._ids: dict[int, str] = {}
        """By the number of a limit."""
        self._current: dict[str, CounterSpec] = {}
        """By id, the one that was last asked: a limit may have been edited."""
        self._hot = (
            layout.mapping, layout.longs, layout.words, layout.undo_count, layout.undo_places,
            layout.undo_lines, layout.owners - layout.first_slot // LINE,
        )  # fmt: skip
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
        state, _ = meter.decide(None, meter.params, 1, 0)
        if isinstance(state, Log):
            if meter.params.limit > MOST_ENTRIES:
                raise too_many_entries(meter, MOST_ENTRIES)
        elif not isinstance(state, tuple) or len(state) > MOST_NUMBERS or not _are_whole(state):
            raise self._unfit(meter)

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        self._check_new(meter)
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
        digest = self._digests.get((meter.id, key)) or self._digest(meter, key)
        offset = self._table.find(digest)
        params = meter.params
        if offset:
            mapping, _, words, _, _, _, owners = self._hot
            length = words[(offset + LENGTH) >> 2]
            if length <= HERE:
                state = UNPACK[length](mapping, offset + NUMBERS)
                after, outcome = meter.decide(state, params, cost, now)
                if after is not state and cost:
                    if self._current.get(meter.id) is not meter:
                        self._remember(meter)
                    if (
                        after.__class__ is not tuple
                        or len(after) != length
                        or meter.family is not None
                    ):
                        self._write_all([(meter, digest, offset, after, outcome)], now)  # type: ignore[list-item]
                    else:
                        self._write_here(meter, offset, after, now, outcome[3])  # type: ignore[arg-type]
                        owner = owners + offset // LINE
                        known = mapping[owner]
                        if known & 1 if not outcome[1] else not known & 1:
                            mapping[owner] = known + 1 if known & 1 else known - 1
                elif not outcome[0]:
                    self._note_denial(offset, now + outcome[3])
                return _new(Decision, (outcome, params.limit, key, cost, now, False))
        before = self._read(offset) if offset else None
        after, outcome = meter.decide(before, params, cost, now)
        if after is not before and after is not None and cost:
            self._write_all([(meter, digest, offset, after, outcome)], now)
        elif not outcome[0]:
            self._note_denial(offset, now + outcome[3])
        return _new(Decision, (outcome, params.limit, key, cost, now, False))

    def _write_here(
        self, meter: CounterSpec, offset: int, numbers: Numbers, now: int, reset_us: int
    ) -> None:
        """As many as stand there: what `undo.note`, `write_numbers` and `undo.done` do, in a third of their time."""
        mapping, longs, _, undo_count, undo_places, undo_lines, _ = self._hot
        expires_us = longs[(offset + EXPIRES) >> 3]
        if expires_us < now + reset_us or not reset_us:
            expires_us = now + reset_us
        mapping[undo_lines : undo_lines + LINE] = mapping[offset : offset + LINE]
        longs[undo_places] = offset
        longs[undo_count] = 1
        try:
            PACK[len(numbers)](mapping, offset + EXPIRES, expires_us, *numbers)
        except struct.error:
            raise self._unfit(meter) from None
        longs[undo_count] = 0

    def _decide_all(self, charges: Charges, now: int | None) -> list[Decision]:
        if now is None:
            now = monotonic_ns() // 1_000 + self._offset_us
        found = self._look_up(charges)
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
                self._note_denial(offset, now + decision.outcome[3])
        if written:
            self._write_all(written, now)
        return decisions

    def _peek(self, charges: Charges, now: int | None) -> list[Decision]:
        if now is None:
            now = monotonic_ns() // 1_000 + self._offset_us
        return decide_all_or_nothing(
            charges, [state for _, _, state in self._look_up(charges)], now
        )[0]

    def _refund(self, charges: Charges, at: int, now: int | None) -> None:
        if now is None:
            now = monotonic_ns() // 1_000 + self._offset_us
        for meter, key, cost in charges:
            digest = self._digest(meter, key)
            offset = self._table.find(digest)
            if offset:
                after = meter.algorithm.refund(self._read(offset), meter.params, cost, at, now)
                outcome = meter.decide(after, meter.params, 0, now)[1]
                self._write_all([(meter, digest, offset, after, outcome)], now)

    def _renew(self, charge: tuple[CounterSpec, str, int], at: int, now: int | None) -> int:
        if now is None:
            now = monotonic_ns() // 1_000 + self._offset_us
        meter, _, cost = charge
        algorithm: Any = meter.algorithm
        ((digest, offset, state),) = self._look_up([charge])
        after, moment = algorithm.renew(state, meter.params, cost, at, now)
        if moment:
            outcome = meter.decide(after, meter.params, 0, now)[1]
            self._write_all([(meter, digest, offset, after, outcome)], now)
        return int(moment)

    def _reset(self, meter: CounterSpec, key: str) -> None:
        offset = self._table.find(self._digest(meter, key))
        if offset:
            self._table.forget(self._slot(offset))
            self._undo.done()

    def _read_numbers(self, meter: CounterSpec, keys: Sequence[str]) -> list[Any]:
        return [state for _, _, state in self._look_up([(meter, key, 0) for key in keys])]

    def _swap(
        self, meter: CounterSpec, swaps: Sequence[StateSwap], now: int, lasts_us: int
    ) -> bool:
        found = self._look_up([(meter, key, 0) for key, _, _ in swaps])
        if [state for _, _, state in found] != [before for _, before, _ in swaps]:
            return False
        outcome = (True, 1, 0, lasts_us, 0)
        self._write_all(
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
        ((digest, offset, before),) = self._look_up([(meter, key, 0)])
        after, result = act(before)
        if after is not before and after is not None:
            now = monotonic_ns() // 1_000 + self._offset_us
            outcome = meter.decide(after, meter.params, 0, now)[1]
            if before is not None and len(after) == len(before) <= HERE:
                self._write_here(meter, offset, after, now, outcome[3])
            else:
                self._write_all([(meter, digest, offset, after, outcome)], now)
        return result

    def _look_up(self, charges: Charges) -> list[tuple[bytes, int, State | None]]:
        """Of each counter its hash, where its slot begins, and its state."""
        found = []
        for meter, key, _ in charges:
            digest = self._digests.get((meter.id, key)) or self._digest(meter, key)
            offset = self._table.find(digest)
            found.append((digest, offset, self._read(offset) if offset else None))
        return found

    def _read(self, offset: int) -> State:
        if self._layout.words[(offset + LENGTH) >> 2] == LOG:
            return self._logs.read(offset)
        return self._table.numbers(self._slot(offset))

    def _write_all(
        self, written: Collection[tuple[CounterSpec, bytes, int, State, tuple[Any, ...]]], now: int
    ) -> None:
        table, undo = self._table, self._undo
        kept = {self._slot(offset) for _, _, offset, _, _ in written if offset}
        if len(kept) < len(written) or any(
            len(state) > HERE or isinstance(state, Log) for _, _, _, state, _ in written
        ):
            self._make_room(written, kept, now)
        for meter, digest, offset, state, outcome in written:
            if offset:
                slot = self._slot(offset)
            else:
                slot = table.add(digest, self._number(meter))
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

    def _note_denial(self, offset: int, until_us: int) -> None:
        """A slower limit than the last one to charge the key needs it for longer."""
        if offset and self._expires_us(offset) < until_us:
            self._layout.longs[(offset + EXPIRES) >> 3] = until_us

    def _write_numbers(self, meter: CounterSpec, slot: int, state: Any, expires_us: int) -> None:
        try:
            self._table.write_numbers(slot, state, expires_us)
        except (struct.error, TypeError, ValueError, IndexError):
            self._undo.roll_back()
            raise self._unfit(meter) from None

    @staticmethod
    def _unfit(meter: CounterSpec) -> ConfigError:
        return ConfigError(
            f"{meter.algorithm.spelling} ({meter.algorithm.code}) cannot count in a zone: a state has to be at most {MOST_NUMBERS:,} "
            "whole numbers below 2**63, or a log; write local_store: memory://",
            path="algo",
        )

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
                self._check_new(meter)
                self._number(meter)
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
                    f"zone {self.name} is too small for what one request needs; write a larger size="
                ) from None

    def _number(self, meter: CounterSpec) -> int:
        """Under which the limit's slots are counted."""
        generation = self._table.control[GENERATION]
        known = self._meters.get(meter.id)
        if known is None or known[1] != generation:
            digest = self._limit_digest(meter.id)
            number = self._table.number_of_limit(meter.id, digest)
            if len(self._meters) >= MOST_METERS:
                self._meters.clear()
                self._ids.clear()
            known = self._meters[meter.id] = (number, self._table.control[GENERATION])
            self._ids[number] = meter.id
        self._remember(meter)
        return known[0]

    def _remember(self, meter: CounterSpec) -> None:
        if len(self._current) >= MOST_METERS:
            self._current.clear()
        self._current[meter.id] = meter

    def _check_new(self, meter: CounterSpec) -> None:
        """A limit may come from code, at any time."""
        if meter not in self._fit:
            self.check_meter(meter)
            if len(self._fit) >= MOST_METERS:
                self._fit.clear()
            self._fit.add(meter)

    def _standing(self, slot: int, now: int) -> int:
        """By its own limit, if this process knows it; else by what was written with it."""
        offset = self._table.offset(slot)
        expires_us = self._expires_us(offset)
        owner = self._layout.mapping[self._layout.owners + slot]
        blocked = not owner & 1
        if expires_us + GRACE_US > now and not blocked:
            return OPEN
        meter = self._limit_of((owner - 1) >> 1)
        if meter is None:
            return IDLE if expires_us + GRACE_US <= now else BLOCKED
        state = self._read(offset)
        if expires_us + GRACE_US <= now and meter.decide(state, meter.params, 0, now)[1][3] <= 0:
            return IDLE
        return OPEN if meter.decide(state, meter.params, 1, now)[1][0] else BLOCKED

    def _limit_of(self, number: int) -> CounterSpec | None:
        """None: this process does not know it. The last number is shared by limits that have none of their own."""
        id = self._ids.get(number)
        if id is None or number == MOST_LIMITS - 1:
            return None
        if self._meters.get(id) != (number, self._table.control[GENERATION]):
            return None
        meter = self._current.get(id)
        family = None if meter is None else meter.family
        return meter if family is None else family.longest

    def _digest(self, meter: CounterSpec, key: str) -> bytes:
        if not isinstance(key, str):
            raise KeyTypeError(key)
        id = meter.id.encode("utf-8", "surrogatepass")
        hashed = blake2b(len(id).to_bytes(4, "little"), key=self._secret, digest_size=16)
        hashed.update(id)
        hashed.update(key.encode("utf-8", "surrogatepass"))
        digest = hashed.digest()
        if len(key) < 128:
            if len(self._digests) >= MOST_DIGESTS:
                self._digests.clear()
            self._digests[meter.id, key] = digest
        return digest

    def _limit_digest(self, id: str) -> bytes:
        spelled = id.encode("utf-8", "surrogatepass")
        return blake2b(spelled, key=self._secret, digest_size=16, person=b"limit").digest()

    @property
    def _secret(self) -> bytes:
        return self._file.header.secret

    def _slot(self, offset: int) -> int:
        return (offset - self._layout.first_slot) // LINE

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
        self._meters.clear()
        self._ids.clear()


def _zero(mapping: mmap, begin: int, end: int) -> None:
    """Owners and heads lie beside each other, and may be long."""
    for place in range(begin, end, 1 << 20):
        many = min(1 << 20, end - place)
        mapping[place : place + many] = bytes(many)


def _are_whole(state: tuple[Any, ...]) -> bool:
    return all(number.__class__ is int and -(2**63) <= number < 2**63 for number in state)


def _reset_us(meter: CounterSpec, state: State, outcome: tuple[Any, ...], now: int) -> int:
    """When the key is as good as never seen: of a rule's tiers and overrides, by the one that remembers longest."""
    if meter.family is None or meter.family.longest is None:
        reset: int = outcome[3]
        return reset
    longest = meter.family.longest
    return longest.decide(state, longest.params, 0, now)[1][3]
