"""A zone in C: the shards, locks, journals and kernels of `native/`, over the zone's file.

Limits that no kernel decides (the algorithms of others) are decided in Python: the state is read, and what comes of it is written if the
state is still the same, else it is read again. So no lock is ever held while Python runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from mmap import mmap
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeVar, cast

from diana.core.charge import ONE, Charges, checked_cost, decide_all_or_nothing
from diana.core.contracts import Clock, Numbers, State, Take
from diana.core.contracts import StateSwap as Change
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.entry_log import Log, log_of
from diana.core.errors import ConfigError
from diana.stores.c_kernels import kernels, terms_of
from diana.stores.zone.limit_names import LimitNames
from diana.stores.zone.misfit_errors import too_many_entries
from diana.stores.zone.zone_file import ZoneFile
from diana.stores.zone.zone_header import BODY

if TYPE_CHECKING:
    from diana._native import Counters, Swap, Terms


if kernels() is None or not kernels().SHARES:
    raise ImportError("zones in C need Diana built with a C compiler, on Linux")

T = TypeVar("T")

MOST_ENTRIES = 10_000
"""Of a sliding log."""
MOST_NUMBERS = 1_000
"""Of a state that no kernel knows."""


class NativeZone:
    kind = "native"
    shared = True

    def __init__(self, file: ZoneFile) -> None:
        self._file = file
        self._names = LimitNames(file.path)
        header = file.header
        try:
            self._counters: Counters = kernels().Counters(
                0, _body(file.mapping), header.secret, header.epoch_offset_us
            )
        except ValueError as error:
            raise _unusable(error) from None
        self._in_python = _InPython(self._counters, header.epoch_offset_us)
        self.decide: Callable[..., list[Decision]] = self._counters.decider(self._in_python.decide)

    @staticmethod
    def lay_out(mapping: mmap) -> None:
        try:
            kernels().lay_out(_body(mapping))
        except ValueError as error:
            raise _unusable(error) from None

    @staticmethod
    def adopt(mapping: mmap) -> None:
        """No other process uses it: what those before were killed in the middle of is undone."""
        try:
            kernels().adopt(_body(mapping))
        except ValueError as error:
            raise _unusable(error) from None

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._counters)

    def check_meter(self, meter: CounterSpec) -> None:
        """ConfigError if what this limit counts does not fit."""
        terms = _terms(meter)
        self._names.add(self._counters.owner_of(terms), meter.id)
        if terms.kind == kernels().LOG and meter.params.limit > MOST_ENTRIES:
            raise too_many_entries(meter, MOST_ENTRIES)
        if terms.kind == kernels().NUMBERS:
            _check_state(meter)

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        self.check_meter(meter)
        terms = _terms(meter)
        if terms.kind != kernels().NUMBERS:
            return self._counters.bind(terms, clock)
        decide = self._in_python.decide

        def take(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            return decide([(meter, key, cost)], None if clock is None else clock())[0]

        return take

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        decisions = self._counters.peek(charges, now)
        return self._in_python.peek(charges, now) if decisions is None else decisions

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        for meter, key, cost in charges:
            terms = _terms(meter)
            if terms.kind == kernels().NUMBERS:
                self._in_python.refund(meter, key, cost, at, now)
            else:
                self._counters.refund(terms, key, cost, at, now)

    def renew(self, charge: tuple[CounterSpec, str, int], at: int, now: int | None = None) -> int:
        return self._in_python.renew(charge, at, now)

    def reset(self, meter: CounterSpec, key: str) -> None:
        self._counters.reset(_terms(meter), key)

    def read(self, meter: CounterSpec, keys: Sequence[str]) -> list[Numbers | None]:
        terms = _terms(meter)
        return [self._counters.read(terms, key) for key in keys]

    def swap(
        self,
        meter: CounterSpec,
        swaps: Sequence[Change],
        now: int,
        lasts_us: int,
    ) -> bool:
        terms, until = _terms(meter), now + lasts_us
        changes: list[Swap] = [
            (terms, key, before, after, until, -1) for key, before, after in swaps
        ]
        return self._counters.swap([], changes, now) is not None

    def change(
        self,
        meter: CounterSpec,
        key: str,
        act: Callable[[Numbers | None], tuple[Numbers | None, T]],
    ) -> T:
        """Kept for as long as its algorithm says."""
        terms, counters = _terms(meter), self._counters
        while True:
            before = counters.read(terms, key)
            after, result = act(before)
            if after is before or after is None:
                return result
            now = self._in_python.now(None)
            until = now + meter.decide(after, meter.params, 0, now)[1][3]
            if counters.swap([], [(terms, key, before, after, until, -1)], now) is not None:
                return result

    def clear(self) -> None:
        """Forget every key, for every process."""
        self._counters.clear()

    def close(self) -> None:
        """The zone stays; it is let go of with the last reference."""

    def counts(self) -> dict[str, int]:
        return self._counters.statistics()

    def limits(self) -> list[tuple[str, int]]:
        """How many keys each limit has; one whose name no process has written down by its hash."""
        names = self._names.known()
        keys: Counter[bytes] = Counter()
        for owner, count in self._counters.owners():
            keys[owner] += count
        return [(names.get(owner, f"#{owner.hex()}"), count) for owner, count in keys.most_common()]


class _InPython:
    """Requests that meet a limit which no kernel decides.

    The clock is looked at after the states: what others wrote is never from the future, however long this process stood still. Kernels
    look at it themselves, with the lock.
    """

    def __init__(self, counters: Counters, epoch_offset_us: int) -> None:
        self._counters = counters
        self._epoch_offset_us = epoch_offset_us

    def decide(self, charges: Charges, given: int | None) -> list[Decision]:
        parts = _Parts(charges)
        while True:
            states = self._states(parts.others)
            now = self.now(given)
            found, after = decide_all_or_nothing(parts.others, states, now)
            swaps = [
                self._swap(charge, before, then, now)
                for charge, before, then in zip(parts.others, states, after, strict=True)
            ]
            if not all(found):
                # Written is at most what was stamped anew because the clock was set back.
                if self._counters.swap([], swaps, now) is None:
                    continue
                decided = self._counters.decide(parts.native, given, True)
                return parts.merged(cast("list[Decision]", decided), found)
            answers = self._counters.swap(parts.native, swaps, given)
            if answers is not None:
                if not all(answers):
                    found = _without_charge(parts.others, states, found, now)
                return parts.merged(answers, found)

    def peek(self, charges: Charges, given: int | None) -> list[Decision]:
        parts = _Parts(charges)
        states = self._states(parts.others)
        now = self.now(given)
        found, _ = decide_all_or_nothing(parts.others, states, now)
        answers = cast("list[Decision]", self._counters.peek(parts.native, given))
        if not all(answers):
            found = _without_charge(parts.others, states, found, now)
        elif not all(found):
            unpaid = [(meter, key, 0) for meter, key, _ in parts.native]
            shown = cast("list[Decision]", self._counters.peek(unpaid, given))
            answers = [
                free._replace(cost=answer.cost) for answer, free in zip(answers, shown, strict=True)
            ]
        return parts.merged(answers, found)

    def refund(self, meter: CounterSpec, key: str, cost: int, at: int, given: int | None) -> None:
        while True:
            (before,) = self._states([(meter, key, cost)])
            if before is None:
                return
            now = self.now(given)
            after = meter.algorithm.refund(before, meter.params, cost, at, now)
            swap = self._swap((meter, key, cost), before, after, now)
            if self._counters.swap([], [swap], now) is not None:
                return

    def renew(self, charge: tuple[CounterSpec, str, int], at: int, given: int | None) -> int:
        """Of a place, which no kernel decides."""
        meter, _, cost = charge
        algorithm: Any = meter.algorithm
        while True:
            (before,) = self._states([charge])
            now = self.now(given)
            after, moment = algorithm.renew(before, meter.params, cost, at, now)
            if not moment:
                return 0
            swap = self._swap(charge, before, after, now)
            if self._counters.swap([], [swap], now) is not None:
                return int(moment)

    def now(self, now: int | None) -> int:
        return monotonic_ns() // 1_000 + self._epoch_offset_us if now is None else now

    def _states(self, charges: Charges) -> list[State | None]:
        return [
            _state_from_numbers(meter, self._counters.read(_terms(meter), key))
            for meter, key, _ in charges
        ]

    @staticmethod
    def _swap(
        charge: tuple[CounterSpec, str, int], before: State | None, after: State | None, now: int
    ) -> Swap:
        meter, key, cost = charge
        if cost is not ONE:
            checked_cost(cost)
        expires, frees = now, -1
        if after is not None:
            by = meter if meter.family is None else meter.family.longest or meter
            expires = now + by.decide(after, by.params, 0, now)[1][3]
            allowed, _, retry_us, reset_us, _ = by.decide(after, by.params, 1, now)[1]
            if not allowed and retry_us:
                # Of places nobody knows when one is given back: until the last has run off, it may be blocked.
                frees = now + (retry_us if retry_us > 0 else reset_us)
        return _terms(meter), key, _numbers(before), _numbers(after), expires, frees


class _Parts:
    """Charges that a kernel decides, and the others; and their answers in the order of the charges."""

    def __init__(self, charges: Charges) -> None:
        numbers = kernels().NUMBERS
        self._are_native = [_terms(meter).kind != numbers for meter, _, _ in charges]
        sides = list(zip(charges, self._are_native, strict=True))
        self.native = [charge for charge, is_native in sides if is_native]
        self.others = [charge for charge, is_native in sides if not is_native]

    def merged(self, native: list[Decision], others: list[Decision]) -> list[Decision]:
        here, there = iter(native), iter(others)
        return [next(here if is_native else there) for is_native in self._are_native]


def _without_charge(
    charges: Charges, states: list[State | None], decisions: list[Decision], now: int
) -> list[Decision]:
    """What those that would pass have, when another limit denies."""
    return [
        decision._replace(outcome=meter.decide(state, meter.params, 0, now)[1])
        if decision
        else decision
        for decision, (meter, _, _), state in zip(decisions, charges, states, strict=True)
    ]


def _terms(meter: CounterSpec) -> Terms:
    compiled: Terms = meter.compiled or terms_of(meter)
    return compiled


def _keeps_log(meter: CounterSpec) -> bool:
    return isinstance(meter.decide(None, meter.params, 1, 0)[0], Log)


def _numbers(state: State | None) -> Numbers | None:
    if isinstance(state, Log):
        return tuple(number for entry in state.entries() for number in entry)
    return state


def _state_from_numbers(meter: CounterSpec, numbers: Numbers | None) -> State | None:
    if numbers is None or not _keeps_log(meter):
        return numbers
    return log_of(zip(numbers[::2], numbers[1::2], strict=True))


def _check_state(meter: CounterSpec) -> None:
    state = meter.decide(None, meter.params, 1, 0)[0]
    if isinstance(state, Log):
        if 2 * meter.params.limit > MOST_NUMBERS:
            raise too_many_entries(meter, MOST_NUMBERS // 2)
    elif not (
        isinstance(state, tuple)
        and len(state) <= MOST_NUMBERS
        and all(number.__class__ is int for number in state)
    ):
        raise ConfigError(
            f"a state of {meter.algorithm.spelling} ({meter.algorithm.code}) does not fit into a zone, which keeps up to "
            f"{MOST_NUMBERS:,} whole numbers of a key; count it in memory:// or in Redis",
            path="algo",
        )


def _body(mapping: mmap) -> memoryview:
    return memoryview(mapping)[BODY:]


def _unusable(error: ValueError) -> ConfigError:
    return ConfigError(f"the zone cannot be used: {error}; empty it, or choose another name")
