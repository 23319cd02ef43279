"""A history of guards: a rules file, requests, and what comes back after them; and how it is run on all back ends."""

from __future__ import annotations

import asyncio
from asyncio import iscoroutine
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from diana import AsyncGuard, ConfigError, Guard, Policy, Request, Verdict, load_rules
from diana.core.limit import Limit
from diana.responses.denial_response import DenialResponse, Fields, ResponseBuilder
from tests.fuzz.back_ends import BackEnd, BackEnds
from tests.fuzz.findings import BrokenLaw, Finding, InvalidHistory, as_result, compare
from tests.fuzz.forgetting import Forgetting
from tests.fuzz.guard_laws import GuardLaws
from tests.fuzz.stepped_clock import BEGIN_US, SECOND_US, SteppedClock


class Sent(NamedTuple):
    """A request, as it can be sent again."""

    path: str
    headers: tuple[tuple[str, str], ...] = ()
    query: str = ""
    peer: str | None = "203.0.113.9"
    method: str = "GET"

    def request(self) -> Request:
        return Request(self.method, self.path, list(self.headers), self.query, self.peer)


class Check(NamedTuple):
    request: Sent


class Look(NamedTuple):
    """`peek`."""

    request: Sent


class RefundRequest(NamedTuple):
    """The latest request that was allowed and not refunded (0), the one before (1), ..."""

    back: int


class Settle(NamedTuple):
    back: int
    status: int


class Release(NamedTuple):
    back: int


class Forget(NamedTuple):
    """`reset`, of all rules that the request meets, or of one."""

    request: Sent
    rule: str | None = None


class Move(NamedTuple):
    """The clock."""

    micros: int


class MoveToRetry(NamedTuple):
    """To the longest `retry_after` of the latest denial, and so many microseconds more."""

    more: int


class Edit(NamedTuple):
    """Other rules are swapped in."""

    rules: dict[str, Any]


class SetOverride(NamedTuple):
    rule: str
    value: str
    rpu: int
    burst: int | None = None
    seconds: int | None = None
    """Until so many seconds from now."""


class RemoveOverride(NamedTuple):
    rule: str
    value: str


Step = (
    Check | Look | RefundRequest | Settle | Release | Forget | Move | MoveToRetry | Edit | SetOverride | RemoveOverride
)  # fmt: skip


class GuardHistory(NamedTuple):
    rules: dict[str, Any]
    """The rules file."""
    steps: tuple[Step, ...]
    apart: bool = False
    """Rules of scope local count in a store of their own."""
    begin_us: int = BEGIN_US
    chance: int = 0
    """What decides for rules that drop at random."""
    tasks: bool = False
    """By AsyncGuard."""


class Told(NamedTuple):
    """All that a verdict says, without what only one process knows."""

    allowed: bool
    denied_by: str | None
    delay: float
    rules: tuple[str, ...]
    decisions: tuple[Any, ...]
    limits: tuple[tuple[str, Limit, int], ...]
    version: str
    errors: tuple[tuple[str, str], ...]
    response: Fields | DenialResponse
    explained: str


def told(verdict: Verdict, answers: ResponseBuilder) -> Told:
    meters = verdict.meters or verdict.match.meters
    return Told(
        verdict.allowed,
        None if verdict.denied_by is None else verdict.denied_by.name,
        verdict.delay,
        tuple(rule.name for rule in verdict.rules),
        verdict.decisions,
        tuple((meter.id, meter.limit, meter.params.limit) for meter in meters),
        verdict.version,
        tuple((name, repr(error)) for name, error in verdict.identity_errors.items()),
        answers.fields(verdict) if verdict else answers.denial(verdict),
        verdict.explain(),
    )


class Side:
    """A guard on one back end, and what it said."""

    def __init__(
        self,
        kind: Any,
        back_end: BackEnd,
        policy: Policy,
        history: GuardHistory,
        clock: SteppedClock,
    ) -> None:
        self.back_end = back_end
        self.observed: list[Verdict] = []
        self.guard: Any = kind(
            policy,
            back_end.store,
            local_store=back_end.local if history.apart else back_end.store,
            clock=clock,
            observers=[lambda _, verdict: self.observed.append(verdict)],
        )
        self.guard._evaluator.dropping.chance = Random(history.chance).random
        self.answers = ResponseBuilder(policy)
        self.allowed: list[Verdict] = []


def run_guards(
    history: GuardHistory, back_ends: BackEnds, runner: asyncio.Runner | None = None
) -> None:
    """Raise a Finding if back ends differ or a law is broken."""
    run = _Run(history, back_ends, runner)
    for place, step in enumerate(history.steps):
        try:
            run.perform(step)
        except Finding as finding:
            finding.step = place
            raise
    for one in back_ends:
        one.compared.histories += 1


class _Run:
    def __init__(
        self, history: GuardHistory, back_ends: BackEnds, runner: asyncio.Runner | None
    ) -> None:
        by_tasks = runner is not None and history.tasks
        self._runner = runner
        self._namespace = back_ends.next_namespace()
        self._clock = SteppedClock(history.begin_us)
        kind = AsyncGuard if by_tasks else Guard
        try:
            self._sides = [
                Side(kind, one, self._policy(history.rules), history, self._clock)
                for one in back_ends
            ]
        except ConfigError as error:
            raise InvalidHistory from error
        model = back_ends.model
        self._laws = GuardLaws(history, self._sides[0], (model.store, model.local), self._clock)
        self._forgetting = Forgetting(model.store, model.local)
        self._to_retry = 0

    def _policy(self, rules: dict[str, Any]) -> Policy:
        return load_rules({"namespace": self._namespace, **rules})

    def perform(self, step: Step) -> None:
        match step:
            case Check(sent):
                self._check(sent)
            case Look(sent):
                self._reset_what_is_not_comparable(sent)
                self._all_say(lambda side: self._told(side, side.guard.peek(sent.request())))
            case RefundRequest(back) if back < len(self._sides[0].allowed):
                self._laws.refund(self._sides[0].allowed[-1 - back])
                self._all_say(lambda side: side.guard.refund(side.allowed.pop(-1 - back)))
            case Settle(back, status) if back < len(self._sides[0].allowed):
                self._laws.settle(self._sides[0].allowed[-1 - back], status)
                self._all_say(
                    lambda side: side.guard.settle(side.allowed.pop(-1 - back), status=status)
                )
            case Release(back) if back < len(self._sides[0].allowed):
                self._laws.release(self._sides[0].allowed[-1 - back])
                self._all_say(lambda side: side.guard.release(side.allowed[-1 - back]))
            case Forget(sent, rule):
                self._all_say(lambda side: side.guard.reset(sent.request(), rule))
                self._laws.begin_anew()
            case Move(micros):
                self._clock.advance(micros)
            case MoveToRetry(more):
                self._clock.advance(self._to_retry + more)
                self._to_retry = 0
            case Edit(rules):
                self._edit(rules)
            case SetOverride(rule, value, rpu, burst, seconds):
                until = None if seconds is None else self._clock() // SECOND_US + seconds
                self._laws.begin_anew(overrides_end=until is not None)
                self._all_say(
                    lambda side: side.guard.override(rule, value, rpu=rpu, burst=burst, until=until)
                )
            case RemoveOverride(rule, value):
                self._laws.begin_anew()
                self._all_say(lambda side: side.guard.remove_override(rule, value))

    def _check(self, sent: Sent) -> None:
        self._reset_what_is_not_comparable(sent)
        self._laws.before_check(sent.request())
        for side in self._sides:
            side.observed.clear()
        verdicts: dict[int, Verdict] = {}

        def check(side: Side) -> Any:
            verdict = self._finish(side.guard.check(sent.request()))
            verdicts[id(side)] = verdict
            return self._told(side, verdict)

        self._all_say(check)
        if len(verdicts) < len(self._sides):
            raise BrokenLaw("check raised an error")
        for side in self._sides:
            verdict = verdicts[id(side)]
            side.back_end.compared.decisions += len(verdict.decisions)
            if len(side.observed) != 1 or side.observed[0] is not verdict:
                raise BrokenLaw(f"observers were called with {side.observed}, not once")
            if verdict:
                side.allowed.append(verdict)
        verdict = verdicts[id(self._sides[0])]
        meters = verdict.meters or verdict.match.meters
        for meter, decision in zip(meters, verdict.decisions, strict=True):
            if verdict or not decision:
                longest = meter if meter.family is None else meter.family.longest or meter
                self._forgetting.note([longest], decision.key, self._clock())
        self._laws.after_check(sent.request(), verdict)
        if not verdict:
            retries = [decision.outcome[2] for decision in verdict.decisions]
            self._to_retry = max(0, *retries)

    def _edit(self, rules: dict[str, Any]) -> None:
        try:
            policies = [self._policy(rules) for _ in self._sides]
            self._laws.edit(policies[0])
            for side, policy in zip(self._sides, policies, strict=True):
                side.guard._evaluator.swap(policy)
                side.answers = ResponseBuilder(policy)
        except ConfigError as error:
            raise InvalidHistory from error

    def _reset_what_is_not_comparable(self, sent: Sent) -> None:
        looks = [side.guard._evaluator.plan_peek(sent.request()).asked for side in self._sides]
        charges = [charge for _, charge in looks[0]]
        found = {*self._forgetting.not_comparable(charges, self._clock())}
        for look in looks if found else ():
            for place, (store, (meter, key, _)) in enumerate(look):
                if (charges[place][0], charges[place][1]) in found:
                    store.reset(meter, key)

    def _told(self, side: Side, verdict: Any) -> Any:
        return told(self._finish(verdict), side.answers)

    def _all_say(self, ask: Callable[[Side], Any]) -> None:
        expected, *others = [self._result(ask, side) for side in self._sides]
        names = [side.back_end.name for side in self._sides[1:]]
        compare(expected, dict(zip(names, others, strict=True)))

    def _result(self, ask: Callable[[Side], Any], side: Side) -> Any:
        try:
            return self._finish(ask(side))
        except Exception as error:
            return as_result(error)

    def _finish(self, said: Any) -> Any:
        return self._runner.run(said) if self._runner and iscoroutine(said) else said
