"""What must hold of every history of limiters, whatever the back ends agree on. Checked in the model, whose states are at hand."""

from __future__ import annotations

from typing import Any, NamedTuple

from diana.core.contracts import State
from diana.core.counter import CounterSpec
from diana.core.decision import NEVER, UNKNOWN, Decision
from diana.core.limit import uses_slots
from tests.fuzz.findings import BrokenLaw
from tests.fuzz.model import Model
from tests.fuzz.stepped_clock import SteppedClock

Counter = tuple[str, str]


class Admitted(NamedTuple):
    at: int
    cost: int
    decision: Decision


class LimiterLaws:
    def __init__(self, meters: list[list[CounterSpec]], model: Model, clock: SteppedClock) -> None:
        self._meters = meters
        self._model = model
        self._clock = clock
        self._admitted: dict[Counter, list[Admitted]] = {}
        """Since the clock went back, without what was refunded."""
        self._steps_back = 0
        self._writer: dict[Counter, CounterSpec] = {}
        """Under which limit a counter was charged last."""
        self._shared = _ids_of_several(meters)
        self._history = RefundHistory()
        self._before: list[tuple[Any, ...]] = []

    def before_take(self, number: int, key: str, cost: int) -> None:
        if self._clock.steps_back > self._steps_back:
            self._steps_back = self._clock.steps_back
            self._admitted.clear()
            self._history.stop()
        if any(meter.denies_all for meter in self._meters[number]):
            return
        self._before = [self._answers(meter, key) for meter in self._meters[number]]
        for meter in self._meters[number]:
            self._check_edit(meter, key)

    def after_take(self, number: int, decision: Decision) -> None:
        meters, key, now = self._meters[number], decision.key, decision.at
        if any(meter.denies_all for meter in meters):
            if decision or decision.outcome[2] != NEVER:
                raise BrokenLaw(f"a limit of 0 denies every request, for ever: {decision}")
            return
        if decision and decision.cost:
            for meter in meters:
                self._note(meter, decision)
            self._history.take(meters, decision)
        if not decision or not decision.cost:
            answers = [self._answers(meter, key) for meter in meters]
            if answers != self._before:
                raise BrokenLaw(f"it wrote though it is no charge: {self._before} {answers}")
        if not decision:
            self._check_retry(meters, decision)
        if decision and decision.cost:  # written just now: no stamp is far ahead
            self._check_more(meters, decision)
            self._check_reset(meters, key, now, decision.outcome[3])

    def refund(self, number: int, decision: Decision) -> None:
        self._history.refund(decision)
        for meter in self._meters[number]:
            admitted = self._admitted.get((meter.id, decision.key), [])
            left = [one for one in admitted if one.decision is not decision]
            if len(left) == len(admitted):
                # Of a charge before a reset or a step back: it may take away from later ones.
                left = []
                self._history.stop()
            self._admitted[meter.id, decision.key] = left

    def reset(self, number: int, key: str) -> None:
        self._history.stop()
        for meter in self._meters[number]:
            self._admitted.pop((meter.id, key), None)
            self._writer.pop((meter.id, key), None)

    def conclude(self) -> None:
        if not self._shared:
            self._history.check()

    def _state(self, meter: CounterSpec, key: str) -> State | None:
        return self._model.states.get((meter.id, key))

    def _answers(self, meter: CounterSpec, key: str) -> tuple[Any, ...]:
        state, now = self._state(meter, key), self._clock()
        return tuple(meter.decide(state, meter.params, cost, now)[1] for cost in (0, 1))

    def passes(self, meter: CounterSpec, key: str, cost: int, now: int | None = None) -> bool:
        when = self._clock() if now is None else now
        return meter.decide(self._state(meter, key), meter.params, cost, when)[1][0]

    def _check_retry(self, meters: list[CounterSpec], decision: Decision) -> None:
        retry, key, cost, now = decision.outcome[2], decision.key, decision.cost, decision.at
        if retry == NEVER:
            if all(cost <= meter.params.limit for meter in meters):
                raise BrokenLaw(f"a cost that can pass is denied for ever: {decision}")
        elif retry != UNKNOWN and not uses_slots(meters[0].algorithm):
            if retry <= 0:
                raise BrokenLaw(f"denied, yet due at once: {decision}")
            if not all(self.passes(meter, key, cost, now + retry) for meter in meters):
                raise BrokenLaw(f"denied when its retry_after is over: {decision}")
            if all(self.passes(meter, key, cost, now + retry - 1) for meter in meters):
                raise BrokenLaw(f"passes before its retry_after is over: {decision}")

    def _check_more(self, meters: list[CounterSpec], decision: Decision) -> None:
        more = decision.outcome[2]
        if more and len(meters) == 1:
            (meter,) = meters
            state, due = self._state(meter, decision.key), decision.at + more
            early, late = (meter.decide(state, meter.params, 0, at)[1][1] for at in (due - 1, due))
            if not early == decision.remaining < late:
                raise BrokenLaw(f"{early} and then {late} when more_after is over: {decision}")
        elif more:
            raise BrokenLaw(f"several limits say when more would pass: {decision}")

    def _check_reset(self, meters: list[CounterSpec], key: str, now: int, reset_us: int) -> None:
        for meter in meters:
            for cost in (0, 1, meter.params.limit):
                when = now + reset_us
                kept = meter.decide(self._state(meter, key), meter.params, cost, when)[1]
                fresh = meter.decide(None, meter.params, cost, when)[1]
                if kept != fresh:
                    raise BrokenLaw(f"not as good as new after reset_after: {kept} {fresh}")

    def _note(self, meter: CounterSpec, decision: Decision) -> None:
        counter = (meter.id, decision.key)
        self._writer[counter] = meter
        if meter.id in self._shared:
            return
        admitted = self._admitted.setdefault(counter, [])
        admitted.append(Admitted(decision.at, decision.cost, decision))
        total = 0
        for one in reversed(admitted):
            total += one.cost
            interval = decision.at - one.at + 1
            most = meter.algorithm.promise(meter.params, interval)
            if total > most:
                raise BrokenLaw(f"{total} in {interval} µs, promised {most}: {meter}")

    def _check_edit(self, meter: CounterSpec, key: str) -> None:
        """Another limit on the same counter than the one that charged it last: an edit, which keeps what was counted."""
        former = self._writer.get((meter.id, key))
        if former is None or former is meter or former.limit.unit_us != meter.limit.unit_us:
            return
        state, now = self._state(meter, key), self._clock()
        passed = former.decide(state, former.params, 1, now)[1][0]
        passes = meter.decide(state, meter.params, 1, now)[1][0]
        lower = meter.limit.rpu < former.limit.rpu and meter.params.limit < former.params.limit
        higher = meter.limit.rpu > former.limit.rpu and meter.params.limit > former.params.limit
        if (lower and passes and not passed) or (higher and passed and not passes):
            raise BrokenLaw(f"{former} says {passed}, and after the edit {meter} says {passes}")


class RefundHistory:
    """Charges that remain find room for at least as much as if those that were refunded had never been made.

    The clock goes forward: with its first step back this ends.
    """

    def __init__(self) -> None:
        self._charges: list[tuple[list[CounterSpec], Decision]] = []
        self._refunded: set[int] = set()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def take(self, meters: list[CounterSpec], decision: Decision) -> None:
        if not self._stopped:
            self._charges.append((meters, decision))

    def refund(self, decision: Decision) -> None:
        if not self._stopped:
            self._refunded.add(id(decision))

    def check(self) -> None:
        if not self._refunded:
            return
        model = Model()
        for meters, decision in self._charges:
            if id(decision) in self._refunded:
                continue
            key, cost, now = decision.key, decision.cost, decision.at
            said = model.decide([(meter, key, cost) for meter in meters], now)
            room = min(one.outcome[1] for one in said)
            if not all(said) or room < decision.outcome[1]:
                raise BrokenLaw(
                    f"refunds left more room than charges that were never made: {decision}, without them {said}"
                )


def _ids_of_several(meters: list[list[CounterSpec]]) -> set[str]:
    """Counters that more than one limiter charges."""
    ids = [meter.id for some in meters for meter in some]
    return {id for id in ids if ids.count(id) > 1}
