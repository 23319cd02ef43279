"""A history of limiters: what is asked of them in which order, and how it is run on all back ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from diana import AsyncLimiter, ConfigError, Limiter
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from tests.fuzz.back_ends import BackEnd, BackEnds
from tests.fuzz.findings import Finding, InvalidHistory, as_result, compare
from tests.fuzz.forgetting import Forgetting
from tests.fuzz.limiter_laws import LimiterLaws
from tests.fuzz.stepped_clock import BEGIN_US, SteppedClock

KEYS = {"long": "k" * 600}
"""Keys that a history names by another word: this one is too long to be kept as it is."""


class Rate(NamedTuple):
    """So many per unit, or at once if the unit is `at once`."""

    rpu: int
    unit: str


class Limits(NamedTuple):
    """A limiter. Limiters of one name count in the same counters."""

    name: str
    limits: tuple[Rate, ...]
    algo: str
    options: dict[str, Any]

    @property
    def spelling(self) -> str:
        return "; ".join(
            f"{rpu} {unit}" if unit == "at once" else f"{rpu} per {unit}"
            for rpu, unit in self.limits
        )


class Take(NamedTuple):
    limiter: int
    key: str
    cost: int = 1


class Peek(NamedTuple):
    limiter: int
    key: str


class Refund(NamedTuple):
    """Of the latest `take` that was allowed and not refunded (0), of the one before (1), ..."""

    back: int


class Reset(NamedTuple):
    limiter: int
    key: str


class Advance(NamedTuple):
    micros: int


class AdvanceToRetry(NamedTuple):
    """To the `retry_after` of the latest denial, and so many microseconds more."""

    more: int


class AdvanceToReset(NamedTuple):
    more: int


Step = Take | Peek | Refund | Reset | Advance | AdvanceToRetry | AdvanceToReset


class LimiterHistory(NamedTuple):
    limiters: tuple[Limits, ...]
    steps: tuple[Step, ...]
    begin_us: int = BEGIN_US
    tasks: bool = False
    """By AsyncLimiter."""


class Charge(NamedTuple):
    """A `take` that was allowed: by which limiter, and what each back end said."""

    limiter: int
    said: list[Any]


def run_limiters(
    history: LimiterHistory, back_ends: BackEnds, runner: asyncio.Runner | None = None
) -> None:
    """Raise a Finding if back ends differ or a law is broken."""
    run = _Run(history, back_ends, runner)
    for place, step in enumerate(history.steps):
        try:
            run.perform(step)
        except Finding as finding:
            finding.step = place
            raise
    run.laws.conclude()
    for one in back_ends:
        one.compared.histories += 1


class _Run:
    def __init__(
        self, history: LimiterHistory, back_ends: BackEnds, runner: asyncio.Runner | None
    ) -> None:
        self._back_ends = list(back_ends)
        self._names = [one.name for one in back_ends.others]
        self._clock = SteppedClock(history.begin_us)
        self._finish: Callable[[Any], Any] = runner.run if runner and history.tasks else _as_it_is
        kind: Any = AsyncLimiter if runner and history.tasks else Limiter
        namespace = back_ends.next_namespace()
        try:
            self._sides = [self._limiters(kind, history, namespace, one) for one in back_ends]
        except ConfigError as error:
            raise InvalidHistory from error
        self._allowed: list[Charge] = []
        self._to_retry = self._to_reset = 0
        self._meters: list[list[CounterSpec]] = [one._limits.meters for one in self._sides[0]]
        model: Any = back_ends.model.store
        self.laws = LimiterLaws(self._meters, model, self._clock)
        self._forgetting = Forgetting(model)

    def _limiters(
        self, kind: Any, history: LimiterHistory, namespace: str, back_end: BackEnd
    ) -> list[Any]:
        return [
            kind(
                limits.spelling,
                algo=limits.algo,
                store=back_end.store,
                name=f"{namespace} {limits.name}",
                clock=self._clock,
                **limits.options,
            )
            for limits in history.limiters
        ]

    def perform(self, step: Step) -> None:
        match step:
            case Advance(micros):
                self._clock.advance(micros)
            case AdvanceToRetry(more):
                self._clock.advance(self._to_retry + more)
                self._to_retry = 0
            case AdvanceToReset(more):
                self._clock.advance(self._to_reset + more)
                self._to_reset = 0
            case Refund(back):
                self._refund(back)
            case Take(number, key, cost) if number < len(self._sides[0]):
                self._take(number, KEYS.get(key, key), cost)
            case Peek(number, key) if number < len(self._sides[0]):
                self._peek(number, KEYS.get(key, key))
            case Reset(number, key) if number < len(self._sides[0]):
                self._reset(number, KEYS.get(key, key))

    def _forget(self, number: int, key: str) -> None:
        charges = [(meter, key, 1) for meter in self._meters[number]]
        for meter, _ in list(self._forgetting.not_comparable(charges, self._clock())):
            place = self._meters[number].index(meter)
            for side, back_end in zip(self._sides, self._back_ends, strict=True):
                back_end.store.reset(side[number]._limits.meters[place], key)

    def _take(self, number: int, key: str, cost: int) -> None:
        self._forget(number, key)
        self.laws.before_take(number, key, cost)
        said = self._all_say(lambda place: self._sides[place][number].take(key, cost))
        decision = said[0]
        if not isinstance(decision, Decision):
            return
        if cost:
            charged = [
                meter
                for meter in self._meters[number]
                if decision or not (meter.denies_all or self.laws.passes(meter, key, cost))
            ]
            self._forgetting.note(charged, key, self._clock())
        self.laws.after_take(number, decision)
        self._to_retry = max(0, decision.outcome[2]) or self._to_retry
        self._to_reset = decision.outcome[3]
        if decision and cost:
            self._allowed.append(Charge(number, said))

    def _peek(self, number: int, key: str) -> None:
        self._forget(number, key)
        self._all_say(lambda place: self._sides[place][number].peek(key))

    def _reset(self, number: int, key: str) -> None:
        self._all_say(lambda place: self._sides[place][number].reset(key))
        self.laws.reset(number, key)

    def _refund(self, back: int) -> None:
        if back < len(self._allowed):
            number, said = self._allowed.pop(-1 - back)
            self._all_say(lambda place: self._sides[place][number].refund(said[place]))
            self.laws.refund(number, said[0])

    def _all_say(self, ask: Callable[[int], Any]) -> list[Any]:
        said = [self._result(ask, place) for place in range(len(self._back_ends))]
        for back_end in self._back_ends:
            back_end.compared.decisions += 1
        compare(said[0], dict(zip(self._names, said[1:], strict=True)))
        parts = [getattr(one, "parts", ()) for one in said]
        compare(parts[0], dict(zip(self._names, parts[1:], strict=True)))
        return said

    def _result(self, ask: Callable[[int], Any], place: int) -> Any:
        try:
            return self._finish(ask(place))
        except Exception as error:
            return as_result(error)


def _as_it_is(said: Any) -> Any:
    return said
