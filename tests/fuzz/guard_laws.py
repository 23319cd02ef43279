"""What must hold of every history of guards, whatever the back ends agree on. Checked on the guard that counts in the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diana import Policy, Request, Rule, Verdict
from diana.core.counter import CounterSpec
from diana.core.decision import NEVER, UNKNOWN, Decision
from diana.core.limit import uses_slots
from diana.engine.random_early_drop import DROPPED
from tests.fuzz.announced import check_announced
from tests.fuzz.findings import BrokenLaw
from tests.fuzz.stepped_clock import SteppedClock

if TYPE_CHECKING:
    from tests.fuzz.guards import GuardHistory, Side

Counter = tuple[str, str]


class GuardLaws:
    def __init__(
        self, history: GuardHistory, side: Side, models: tuple[Any, Any], clock: SteppedClock
    ) -> None:
        self._ends = "'until'" in repr((history.rules, history.steps))
        """Some override ends at a moment, so that time changes more than counters."""
        self._side = side
        self._guard = side.guard._evaluator
        self._models = models
        self._clock = clock
        self._admitted: dict[Counter, list[tuple[int, int, Decision]]] = {}
        self._limits: dict[Counter, list[CounterSpec]] = {}
        self._lawless: set[Counter] = set()
        self._steps_back = 0
        self._before: Verdict | None = None

    def begin_anew(self, *, overrides_end: bool = False) -> None:
        """Counters were reset, or are asked under other limits from now on."""
        self._ends = self._ends or overrides_end
        self._lawless |= set(self._admitted)
        self._admitted.clear()
        self._limits.clear()

    def edit(self, policy: Policy) -> None:
        self.begin_anew()
        former = {rule.meter.id: rule for rule in self._guard.policy.rules}
        for rule in policy.rules:
            if rule.meter.id in former:
                self._check_edit(former[rule.meter.id], rule)

    def refund(self, verdict: Verdict) -> None:
        for meter, decision in _charges(verdict):
            self._take_back(meter, decision)

    def settle(self, verdict: Verdict, status: int) -> None:
        for rule, (meter, decision) in zip(verdict.rules, _charges(verdict), strict=True):
            if rule.charge_on is not None and status not in rule.charge_on.numbers:
                self._take_back(meter, decision)

    def release(self, verdict: Verdict) -> None:
        for meter, decision in _charges(verdict):
            if uses_slots(meter.algorithm):
                self._take_back(meter, decision)

    def before_check(self, request: Request) -> None:
        if self._clock.steps_back > self._steps_back:
            self._steps_back = self._clock.steps_back
            self.begin_anew()
        self._before = self._peek(request)

    def after_check(self, request: Request, verdict: Verdict) -> None:
        before = self._before
        assert before is not None
        dropped = any(decision.outcome == DROPPED for decision in verdict.decisions)
        if verdict:
            if _facts(before) != _facts(verdict):
                raise BrokenLaw(f"peek says: {_facts(before)}, check: {_facts(verdict)}")
            for meter, decision in _charges(verdict):
                self._note(meter, decision)
            check_announced(verdict, self._side.answers, self._state, self._clock())
            return
        if not dropped and before.allowed:
            raise BrokenLaw(f"peek allows what check denies: {_facts(verdict)}")
        after = self._peek(request)
        if _facts(before) != _facts(after):
            raise BrokenLaw(f"charged though denied: {_facts(before)}, then {_facts(after)}")
        if not dropped and not self._ends:
            self._check_retry(request, verdict, len(before.rules))

    def _peek(self, request: Request) -> Verdict:
        plan = self._guard.plan_peek(request)
        decisions = [store.peek([charge], plan.now)[0] for store, charge in plan.asked]
        verdict: Verdict = plan.verdict(decisions)
        return verdict

    def _state(self, meter: CounterSpec, key: str) -> Any:
        counter = (meter.id, key)
        return next((one.states[counter] for one in self._models if counter in one.states), None)

    def _check_retry(self, request: Request, verdict: Verdict, rules: int) -> None:
        enforced = [
            (verdict.rules[place], verdict.decisions[place]) for place in verdict.match.enforced
        ]
        retries = [decision.outcome[2] for _, decision in enforced if not decision]
        if not retries or NEVER in retries or UNKNOWN in retries:
            return
        if any(uses_slots(rule.meter.algorithm) for rule, _ in enforced):
            return
        retry, now = max(retries), self._clock.now_us
        try:
            self._clock.now_us = now + retry - 1
            early = self._peek(request)
            self._clock.now_us = now + retry
            due = self._peek(request)
        finally:
            self._clock.now_us = now
        if early:
            raise BrokenLaw(f"passes before its retry_after is over: {_facts(verdict)}")
        if not due and len(verdict.rules) == rules:
            raise BrokenLaw(f"denied when its retry_after is over: {_facts(verdict)} {_facts(due)}")

    def _take_back(self, meter: CounterSpec, decision: Decision) -> None:
        counter = (meter.id, decision.key)
        admitted = self._admitted.get(counter, [])
        left = [one for one in admitted if one[2] is not decision]
        if len(left) == len(admitted) and decision and decision.cost:
            self._lawless.add(counter)  # it may take away from later charges
        self._admitted[counter] = left

    def _note(self, meter: CounterSpec, decision: Decision) -> None:
        counter = (meter.id, decision.key)
        if not decision or not decision.cost or counter in self._lawless:
            return
        limits = self._limits.setdefault(counter, [])
        if not any(meter is one for one in limits):
            limits.append(meter)
        admitted = self._admitted.setdefault(counter, [])
        admitted.append((decision.at, decision.cost, decision))
        total = 0
        for at, cost, _ in reversed(admitted):
            total += cost
            interval = decision.at - at + 1
            most = _promise(limits, interval)
            if total > most:
                raise BrokenLaw(f"{total} in {interval} µs, promised {most}: {meter}")

    def _check_edit(self, former: Rule, rule: Rule) -> None:
        """Counts are kept: a lower limit denies those whom the former one denied, a higher one allows those whom it allowed."""
        before, after, now = former.meter, rule.meter, self._clock()
        if before.denies_all or after.denies_all:
            return
        if former.tiers or rule.tiers or before.limit.unit_us != after.limit.unit_us:
            return
        lower = after.limit.rpu < before.limit.rpu and after.params.limit < before.params.limit
        higher = after.limit.rpu > before.limit.rpu and after.params.limit > before.params.limit
        for id, key in {counter for model in self._models for counter in model.states}:
            if id != after.id:
                continue
            state = self._state(after, key)
            passed = before.decide(state, before.params, 1, now)[1][0]
            passes = after.decide(state, after.params, 1, now)[1][0]
            if (lower and passes and not passed) or (higher and passed and not passes):
                raise BrokenLaw(f"{before} says {passed}, and after the edit {after} says {passes}")


def _promise(limits: list[CounterSpec], interval: int) -> int:
    """Of tiers and overrides: the highest burst and rate."""
    at_once = max(one.algorithm.promise(one.params, 1) for one in limits)
    if len(limits) == 1:
        return limits[0].algorithm.promise(limits[0].params, interval)
    later = max(
        one.algorithm.promise(one.params, interval) - one.algorithm.promise(one.params, 1)
        for one in limits
    )
    return at_once + later + 1


def _charges(verdict: Verdict) -> list[tuple[CounterSpec, Decision]]:
    meters = verdict.meters or verdict.match.meters
    return list(zip(meters, verdict.decisions, strict=True))


def _facts(verdict: Verdict) -> tuple[object, ...]:
    denied_by = verdict.denied_by and verdict.denied_by.name
    names = [rule.name for rule in verdict.rules]
    return verdict.allowed, denied_by, verdict.delay, names, verdict.decisions
