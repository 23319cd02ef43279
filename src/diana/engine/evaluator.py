"""The order in which a request is evaluated, written once for threads and coroutines.

1. *Shed*: under overload a share of the requests is denied before any rule is evaluated.
2. *Match* the rules by url and method, and *identify* the client: each rule gives one charge. A rule that denies by a list, a limit of 0 or
   a missing identity ends the evaluation.
3. *Random early drop*, for rules that have it.
4. *Charge*: the local rules first, so that a request which they deny costs no round trip; then the leased ones, whose permits are mostly
   here; then the global ones in one call. If a store denies or fails, what the stores before it charged is refunded.
5. *Shadow* rules count what was allowed.
6. Observers are notified of the verdict, once per request, also if it waited.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from os import getpid
from typing import Any, NamedTuple

from diana.core.charge import charged_at
from diana.core.contracts import Clock, Store
from diana.core.counter import CounterSpec, countable
from diana.core.decision import Decision
from diana.core.drive import adrive, drive
from diana.core.limit_adjustments import LiveOverrides, Override, meter_with
from diana.core.matched_rules import MatchedRules
from diana.core.policy import Policy
from diana.core.request import Request
from diana.core.rule_names import rule_named
from diana.core.shed_settings import Shed
from diana.core.verdict import Verdict
from diana.engine.charge_builder import Charge, ChargeBuilder, Refusal, is_refused
from diana.engine.observers import call_observers
from diana.engine.override_arguments import check_cost_can_pass, override_key
from diana.engine.peek_plan import PeekPlan, denial_without_store, denied_or_delayed
from diana.engine.process_threads import ProcessThreads
from diana.engine.random_early_drop import DROPPED
from diana.engine.refunds import StoreRefund
from diana.engine.shared_parts import SharedParts
from diana.engine.slots_after_edit import meters_after_edit
from diana.runtime.clock import wall_us
from diana.slots.waiting import QueueLimits, line_of_meter
from diana.stores.adapters import decide_shielded

NO_RULES = MatchedRules(())

_new = tuple.__new__


class EvaluationPlan(NamedTuple):
    """One request with its rules and charges, before a store decides. What is swapped in meanwhile does not change it."""

    policy: Policy
    request: Request
    rules: MatchedRules
    charges: list[Charge]
    now: int | None


Prepared = tuple[Policy, Request, MatchedRules, list[Charge], int | None]
"""The values of an EvaluationPlan. Most requests need one call of one store, and no object for that."""


class StoreDecision(NamedTuple):
    """A step of the evaluation: charge these in one store."""

    store: Store
    charges: list[Charge]


class Evaluator:
    """A policy on its stores: what `Guard` and `AsyncGuard` have in common."""

    def __init__(self, policy: Policy, parts: SharedParts) -> None:
        self.policy = policy
        self.parts = parts
        self.clock: Clock | None = parts.clock
        self.observers = parts.observers
        self.stores = parts.stores
        self.local, self.shared = parts.stores.local, parts.stores.shared
        self.leased, self.one_store = parts.stores.leased, parts.stores.are_one
        self.owned = parts.stores.owned
        self.queues = parts.queues
        self.refunds = parts.refunds
        self.stored = parts.stored_overrides
        self.dropping = parts.dropping
        self.overrides = LiveOverrides()
        """Those of code."""
        self._charge_builder = ChargeBuilder(self.stored, self.overrides, parts.shares)
        self.threads = ProcessThreads()
        self.accept: Callable[[Policy], None] | None = None
        """Raises ConfigError for rules that cannot be used here."""

    def start_shedding(self) -> None:
        """Of several evaluators on the same stores, one sheds: no request is shed twice."""
        self.threads.shed(self.policy.settings)
        self.threads.show_factors(self.observers)

    def sharing_stores(self, policy: Policy) -> Evaluator:
        """Other rules on the same stores, which this evaluator's guard closes. They shed no request: that is done once."""
        other = Evaluator(policy, self.parts)
        other.owned = []
        other.threads.follow = self.threads.follow
        return other

    @property
    def identity_errors(self) -> int:
        return self._charge_builder.errors

    @property
    def function_errors(self) -> int:
        return self._charge_builder.function_errors.count

    @property
    def expired_slots(self) -> int:
        return sum(account.expired for account in self.refunds.accounts)

    def swap(self, policy: Policy) -> None:
        """Other rules from now on; a request that is being evaluated keeps its rules. Counters stay."""
        if self.accept is not None:
            self.accept(policy)
        self.stores.check_fits(policy)
        edited = meters_after_edit(policy, self.policy, self.clock() if self.clock else wall_us())
        self.policy = policy
        self.refunds.use_edited(edited)
        self.threads.shed(policy.settings)
        self.stores.warn_if_not_shared(policy)

    def check(self, request: Request) -> Verdict:
        """Whether every rule allows the request; if one denies, none is charged. Observers are notified."""
        verdict = self.evaluate(request)
        return self.notify(verdict) if self.observers else verdict

    async def acheck(self, request: Request) -> Verdict:
        """The same for coroutines."""
        verdict = await self.aevaluate(request)
        return self.notify(verdict) if self.observers else verdict

    def evaluate(self, request: Request) -> Verdict:
        """`check` without the observers: a request that waits is evaluated several times."""
        prepared = self._prepare(request)
        if isinstance(prepared, Verdict):
            return prepared
        policy, _, rules, charges, now = prepared
        if rules.one_call or (self.one_store and not rules.shadows):
            store = self._only_store(rules)
            return self._verdict(policy, request, rules, charges, store.decide(charges, now))
        plan = EvaluationPlan(*prepared)
        return drive(self._charge_stores(plan), partial(self._perform, plan))

    async def aevaluate(self, request: Request) -> Verdict:
        """The same for coroutines: it awaits the stores that are elsewhere."""
        if self.one_store:
            return self.evaluate(request)
        prepared = self._prepare(request)
        if isinstance(prepared, Verdict):
            return prepared
        policy, _, rules, charges, now = prepared
        plan = EvaluationPlan(*prepared)
        if rules.one_call:
            store = self._only_store(rules)
            here = store is self.local
            decisions = (
                store.decide(charges, now) if here else await self._adecide(plan, store, charges)
            )
            return self._verdict(policy, request, rules, charges, decisions)
        return await adrive(self._charge_stores(plan), partial(self._aperform, plan))

    def _prepare(self, request: Request) -> Prepared | Verdict:
        """A Verdict, if no store has to decide."""
        threads = self.threads
        if threads.pid != getpid():
            threads.enter_process()
        shedding = threads.shedding
        if shedding is not None and shedding.rejecting:
            shed = shedding.shed(request)
            if shed is not None:
                return self._shed(shed, request)
        policy, now = self.policy, self.clock and self.clock()
        rules, charges, refusal = self._charge_builder.charges(policy, request, now)
        if refusal is not None:
            plan = EvaluationPlan(policy, request, rules, charges, now)
            return self._refuse(plan, refusal)
        if rules.drops:
            dropped = self._first_dropped(rules, charges)
            if dropped is not None:
                plan = EvaluationPlan(policy, request, rules, charges, now)
                return self._drop(plan, dropped)
        return policy, request, rules, charges, now

    def _only_store(self, rules: MatchedRules) -> Store:
        """The store that decides all of them in one call."""
        return self.shared if rules.shared else self.leased if rules.leased else self.local

    def _charge_stores(
        self, plan: EvaluationPlan
    ) -> Generator[StoreDecision | StoreRefund, Any, Verdict]:
        """From the nearest store to the furthest, each if all before it allow the request; then the shadow rules."""
        rules, charges = plan.rules, plan.charges
        decisions: dict[int, Decision] = {}
        """By the rule's index: rules behind a denial have none."""
        try:
            for store, indices in self._stages(rules):
                if not indices or not all(decisions.values()):
                    continue
                try:
                    answers = yield StoreDecision(store, [charges[index] for index in indices])
                except Exception:
                    yield from self._refund_earlier_stages(plan, decisions)
                    decisions.clear()
                    raise
                if not all(answers):
                    yield from self._refund_earlier_stages(plan, decisions)
                decisions.update(zip(indices, answers, strict=True))
            if all(decisions.values()):
                for index in rules.shadows:
                    if is_refused(charges[index]):
                        self.stores.publish_zero(rules.rules[index])
                        decisions[index] = denial_without_store(charges[index], plan.now)
                    else:
                        store = self.stores.of(rules.rules[index])
                        (decisions[index],) = yield StoreDecision(store, [charges[index]])
        except BaseException:
            self._release_slots(plan, decisions)
            raise
        return self._verdict_of_decided(plan, decisions)

    def _stages(self, rules: MatchedRules) -> Iterator[tuple[Store, tuple[int, ...]]]:
        if self.one_store:
            yield self.local, rules.enforced
            return
        yield self.local, rules.local
        yield self.leased, rules.leased
        yield self.shared, rules.shared

    def _perform(self, plan: EvaluationPlan, step: StoreDecision | StoreRefund) -> Any:
        if isinstance(step, StoreDecision):
            return step.store.decide(step.charges, plan.now)
        return step.perform()

    async def _aperform(self, plan: EvaluationPlan, step: StoreDecision | StoreRefund) -> Any:
        if isinstance(step, StoreRefund):
            return await step.aperform()
        if step.store is self.local:
            return step.store.decide(step.charges, plan.now)
        return await self._adecide(plan, step.store, step.charges)

    async def _adecide(
        self, plan: EvaluationPlan, store: Store, charges: list[Charge]
    ) -> list[Decision]:
        """In a store elsewhere. If the task is cancelled meanwhile, the slots that it gets are released."""
        side = self.stores.in_loop[id(store)]
        if not plan.rules.holds or store is not self.shared:
            return await side.decide(charges, plan.now)
        release = partial(self.refunds.release_all, store, charges)
        return await decide_shielded(side, charges, plan.now, release)

    def _refund_earlier_stages(
        self, plan: EvaluationPlan, decisions: dict[int, Decision]
    ) -> Generator[StoreRefund]:
        """A store denied or failed: what those before it charged is refunded, and their decisions show what remains without the charge."""
        for index, decision in decisions.items():
            charge = meter, key, cost = plan.charges[index]
            if self.stores.of(plan.rules.rules[index]) is self.local:
                self.local.refund([charge], charged_at(meter, decision), plan.now)
                (decisions[index],) = self.local.peek([(meter, key, 0)], plan.now)
            else:
                at = self.stores.charged_at(self.leased, meter, decision)
                yield StoreRefund(self.leased, charge, at, plan.now, decision.degraded)
                _, remaining, _, reset_us, _ = decision.outcome
                outcome = (True, remaining + cost, 0, reset_us, 0)
                decisions[index] = decision._replace(outcome=outcome)

    def _release_slots(self, plan: EvaluationPlan, decisions: dict[int, Decision]) -> None:
        """Cancelled, or interrupted as by a timeout of gevent: charges stand, but a slot would be held for no request."""
        if plan.rules.holds:
            for index, decision in decisions.items():
                store = self.stores.of(plan.rules.rules[index])
                self.refunds.release(store, [plan.charges[index]], [decision])

    def _verdict_of_decided(
        self, plan: EvaluationPlan, decisions: dict[int, Decision], listed: str | None = None
    ) -> Verdict:
        """Rules behind a denial were not evaluated, so the verdict does not have them."""
        policy, request, rules, charges, _ = plan
        indices = tuple(sorted(decisions))
        decided = rules if len(indices) == len(rules.rules) else rules.pick(indices)
        charged = [charges[index] for index in indices]
        answers = [decisions[index] for index in indices]
        return self._verdict(policy, request, decided, charged, answers, listed)

    def _verdict(
        self,
        policy: Policy,
        request: Request,
        rules: MatchedRules,
        charges: list[Charge],
        decisions: list[Decision],
        listed: str | None = None,
    ) -> Verdict:
        denied_by, delay = None, 0.0
        for decision in decisions:
            outcome = decision.outcome
            if not outcome[0] or outcome[4]:
                denied_by, delay = denied_or_delayed(rules, decisions)
                break
        meters = rules.meters
        if rules.varies or self.stored.by_rule or self.overrides.by_rule:
            meters = (
                (charges[0][0],) if len(charges) == 1 else tuple([charge[0] for charge in charges])
            )
        allowed, answers, version = denied_by is None, tuple(decisions), policy.version
        values = allowed, delay, denied_by, rules, answers, version, request, meters, None, listed
        verdict: Verdict = _new(Verdict, values)
        return verdict

    def _shed(self, shed: Shed, request: Request) -> Verdict:
        """No rule is evaluated, so none is charged."""
        version = self.policy.version
        return Verdict(False, 0.0, None, NO_RULES, (), version, request, (), shed)

    def _refuse(self, plan: EvaluationPlan, refusal: Refusal) -> Verdict:
        """The last rule denies, so none is charged; a local one before it that denies as well is the one to name."""
        *earlier, last = plan.charges
        self.stores.publish_zero(plan.rules.rules[-1])
        decisions: dict[int, Decision] = {}
        for index, charge in enumerate(earlier):
            rule = plan.rules.rules[index]
            if rule.mode == "enforce" and self.stores.of(rule) is self.local:
                (decision,) = self.local.peek([charge], plan.now)
                if decision:
                    (decision,) = self.local.peek([(charge[0], charge[1], 0)], plan.now)
                decisions[index] = decision
        decisions[len(earlier)] = denial_without_store(last, plan.now)
        return self._verdict_of_decided(plan, decisions, refusal.listed)

    def _first_dropped(self, rules: MatchedRules, charges: list[Charge]) -> int | None:
        """The index of the first rule by which chance denies; every such rule counts the arrival."""
        found = None
        for index in rules.drops:
            meter, key, _ = charges[index]
            if self.dropping.drops(meter, key) and found is None:
                found = index
        return found

    def _drop(self, plan: EvaluationPlan, index: int) -> Verdict:
        """No rule is charged."""
        meter, key, cost = charge = plan.charges[index]
        at = wall_us() if plan.now is None else plan.now
        decision = Decision(DROPPED, meter.params.limit, key, cost, at)
        only = plan.rules.pick((index,))
        return self._verdict(plan.policy, plan.request, only, [charge], [decision])

    def notify(self, verdict: Verdict) -> Verdict:
        """Observers are told of it."""
        if self.observers:
            report = getattr(verdict.request, "report", None)
            if report is None:
                call_observers(self.observers, verdict)
            else:
                report.add(self.observers, verdict)
        return verdict

    def plan_peek(self, request: Request) -> PeekPlan:
        """Which counter of which store `check` would charge for this request."""
        now = self.clock and self.clock()
        rules, charges, refusal = self._charge_builder.charges(self.policy, request, now)
        listed = None if refusal is None else refusal.listed
        stores = [self.stores.of(rule) for rule in rules.rules]
        return PeekPlan.of(self.policy, request, rules, charges, stores, listed, now)

    def queue_ahead(self, request: Request) -> QueueLimits | None:
        """The queue of requests that wait already for a slot which this request needs, too."""
        if not self.queues:
            return None
        for _, (meter, key, _) in self.plan_peek(request).asked:
            queue = line_of_meter(meter, key)
            if queue is not None and self.queues.length(queue.name):
                return queue
        return None

    def counters(
        self, request: Request, only: str | None
    ) -> Iterator[tuple[Store, CounterSpec, str]]:
        """Those of the request's keys: of all rules that cover it, or of one."""
        wanted = None if only is None else rule_named(only, self.policy.rules).distinct_name
        now = self.clock and self.clock()
        for rule, (meter, key, _) in self._charge_builder.counters(self.policy, request, now):
            if wanted is None or rule.distinct_name == wanted:
                yield self.stores.of(rule), countable(meter), key

    def override(self, name: str, value: str, override: Override | None) -> None:
        """Other numbers for one value of a rule's actor; None: no longer. Of this process alone."""
        rule = rule_named(name, self.policy.rules)
        key = override_key(rule, name, value)
        if override is not None:
            meter = meter_with(rule.meter, override)
            self.stores.check_fit(meter)
            check_cost_can_pass(rule, meter)
        self.overrides.set_for(rule, key, override)
