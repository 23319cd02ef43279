"""All rules, by request: what happens, in order.

0. Under load, is it shed? Then no rule is asked. 1. Which rules apply? 2. Who is asking, for each of them? 3. The local ones are asked
first, so that a request they deny costs no round trip; then the leased ones, whose permits are mostly here; then the global ones; and
if one denies, what was charged before is given back. 4. Those in the shadow count what passed. 5. Observers are told.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from os import getpid
from typing import Any, NamedTuple, cast
from weakref import ReferenceType, ref

from diana.core.charge import charged_at
from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.counter import CounterSpec, countable
from diana.core.decision import Decision
from diana.core.errors import ConfigError, shown
from diana.core.limit_adjustments import (
    LiveOverrides,
    Override,
    cost_never_passes,
    meter_with,
)
from diana.core.matched_rules import MatchedRules
from diana.core.node_share import Shares, share_without_registry
from diana.core.policy import Policy
from diana.core.request import Request
from diana.core.rule import Rule
from diana.core.rule_names import rule_named
from diana.core.shed_settings import Shed
from diana.core.verdict import Verdict
from diana.core.zero import REFUSED
from diana.engine.charge_builder import (
    NO_IDENTITY,
    REFUSED_KEY,
    Charge,
    ChargeBuilder,
    Refusal,
    is_refused,
)
from diana.engine.observers import StoreCounts, call_observers
from diana.engine.random_early_drop import DROPPED, RandomEarlyDrop
from diana.engine.refunds import RefundPlanner, StoreRefund
from diana.engine.rule_stores import RuleStores
from diana.engine.slots_after_edit import meters_after_edit
from diana.runtime.clock import checked_clock, wall_us
from diana.runtime.entry_points import plugin
from diana.shedding.gauge import GaugeState
from diana.shedding.load_shedder import Shedding
from diana.shedding.sampling import ProcessActivity
from diana.slots.wait_queue import WaitQueues
from diana.slots.waiting import QueueLimits, line_of_meter
from diana.stores import asynchronous, refund_verb
from diana.stores.adapters import decide_shielded
from diana.stores.arrival_rates import Arrivals

log = logging.getLogger("diana")

NO_RULES = MatchedRules(())

_new = tuple.__new__


class PeekPlan(NamedTuple):
    """What `check` would ask, without asking it."""

    match: MatchedRules
    meters: list[CounterSpec]
    asked: list[tuple[Store, Charge]]
    """Without those that are refused: they need no store."""
    refused: dict[int, Decision]
    """By the rule's place in the match."""
    listed: str | None
    """What of a `deny` list the request is."""
    now: int | None


class Evaluator:
    """A policy on its stores: all that both shells share."""

    def __init__(
        self,
        policy: Policy,
        store: str | Store | Client | None,
        clock: Clock | None,
        observers: Sequence[str | Observer],
        local_store: str | Store | None = None,
    ) -> None:
        self.policy = policy
        self.clock = checked_clock(clock)
        self.observers = _observers(observers)
        self.stores = RuleStores(policy, store, local_store)
        self.local, self.shared, self.leased = (
            self.stores.local,
            self.stores.shared,
            self.stores.leased,
        )
        self.one_store = self.stores.are_one
        self.owned = self.stores.owned
        self.lines = WaitQueues()
        self.giving_back = RefundPlanner(self.stores, self.clock, self.lines)
        self.counts = StoreCounts(self.shared, self.giving_back)
        for observer in self.observers:
            if hasattr(observer, "watch"):
                observer.watch(self.counts)
        self._quiet: Evaluator | None = None
        self.overrides = LiveOverrides()
        """Those of code."""
        stored: LiveOverrides | None = getattr(self.shared, "overrides", None)
        self.stored = LiveOverrides() if stored is None else stored
        """Those of the store."""
        settings = policy.settings
        shares: Shares | None = getattr(self.shared, "shares", None)
        self.shares = shares or Shares(
            share_without_registry(settings.weight or 1, settings.nodes or 1)
        )
        """What this node gets of a limit that is divided."""
        arrivals: Arrivals | None = getattr(self.shared, "arrivals", None)
        if arrivals is None or clock is not None:
            arrivals = Arrivals() if clock is None else Arrivals(lambda: clock() / 1_000_000)
        self.dropping = RandomEarlyDrop(arrivals)
        self._charging = ChargeBuilder(self.stored, self.overrides, self.shares)
        self.follow: Callable[[], bool] = lambda: True
        """Follow changes of the rules in this process; whether it does."""
        self.accept: Callable[[Policy], None] | None = None
        """Raises ConfigError for rules that cannot be used here."""
        self._pid = 0
        self._shedding = Shedding()
        self.shedding: Shedding | None = None
        """None: nothing is ever shed."""
        self.activity: ProcessActivity | None = None
        """To be told of every request that is let in; None: nobody asks."""
        self._apply_shedding()
        for observer in self.observers:
            if hasattr(observer, "watch_factors"):
                observer.watch_factors(partial(_states, ref(self._shedding)))

    @property
    def identity_errors(self) -> int:
        return self._charging.errors

    @property
    def function_errors(self) -> int:
        return self._charging.function_errors.count

    @property
    def expired_slots(self) -> int:
        return sum(account.expired for account in self.giving_back.accounts)

    @property
    def quiet(self) -> Evaluator:
        """The same, but observers are not told: of a request that waits they are told once, in the end."""
        if self._quiet is None:
            self._quiet = copy(self)
            self._quiet.observers = ()
        self._quiet.policy, self._quiet.shedding = self.policy, self.shedding
        return self._quiet

    def tell(self, verdict: Verdict) -> Verdict:
        if self.observers:
            self._notify(verdict)
        return verdict

    def line_before(self, request: Request) -> QueueLimits | None:
        """Where others wait already for a place that this request needs, too."""
        if not self.lines:
            return None
        look = self.look(request)
        for _, (meter, key, _) in look.asked:
            line = line_of_meter(meter, key)
            if line is not None and self.lines.length(line.name):
                return line
        return None

    def enter_process(self) -> None:
        """Threads of a parent are not in its child. A server may fork in C, unseen by Python, so the process is compared on each use."""
        pid = getpid()
        if self._pid != pid and self.follow():
            self._pid = pid  # before we look: what is swapped in from now on sets it back
            if self.shedding is not None and not self.shedding.ensure():
                self._pid = 0

    def beside(self, policy: Policy) -> Evaluator:
        """Other rules on the same stores, which stay this one's to close."""
        other = copy(self)
        other.policy = policy
        other.owned = []
        other._quiet = None
        other.overrides = LiveOverrides()
        other._charging = ChargeBuilder(self.stored, other.overrides, self.shares)
        # No request is shed twice.
        other._shedding = Shedding()
        other.shedding = other.activity = None
        return other

    def swap(self, policy: Policy) -> None:
        """Other rules from now on; who is being judged is judged by those it began with. What was counted stays."""
        if self.accept is not None:
            self.accept(policy)
        self.stores.check_fits(policy)
        edited = meters_after_edit(policy, self.policy, self.clock() if self.clock else wall_us())
        self.policy = policy
        self.giving_back.use_edited(edited)
        self._apply_shedding()
        self.stores.warn_if_not_shared(policy)

    def _apply_shedding(self) -> None:
        lines = self.policy.settings.shed
        if lines or self.shedding is not None:
            self._shedding.use(self.policy.settings)
        if not lines:
            self._shedding.close()
        self.activity = (
            self._shedding.activity if any(line.kind.needs_activity for line in lines) else None
        )
        self.shedding = self._shedding if lines else None
        self._pid = 0

    def factors(self) -> list[GaugeState]:
        return [] if self.shedding is None else self.shedding.states()

    def close(self) -> None:
        self._shedding.close()

    def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        asked = self._prepare(request)
        if asked.__class__ is Verdict:
            return asked
        match, charges, now, policy = asked
        if match.one_call or (self.one_store and not match.shadows):
            store = self.shared if match.shared else self.leased if match.leased else self.local
            return self._conclude(match, store.decide(charges, now), policy, request, charges)
        decisions = self._decide_here(match, charges, now)
        for there, places in self._stages(match, decisions):
            try:
                answers = there.decide([charges[place] for place in places], now)
            except Exception:
                for store, verb, args in self._give_back(match, charges, decisions, now):
                    getattr(store, verb)(*args)
                raise
            except BaseException:
                self._release_places(match, charges, decisions)
                raise
            if not all(answers):
                for store, verb, args in self._give_back(match, charges, decisions, now):
                    getattr(store, verb)(*args)
            decisions.update(zip(places, answers, strict=True))
        try:
            for place, store in self._shadows(match, charges, decisions, now):
                (decisions[place],) = store.decide([charges[place]], now)
        except BaseException:
            self._release_places(match, charges, decisions)
            raise
        return self._conclude_some(match, decisions, policy, request, charges)

    async def acheck(self, request: Request) -> Verdict:
        """The same for coroutines: it awaits the stores that are elsewhere."""
        if self.one_store:
            return self.check(request)
        asked = self._prepare(request)
        if asked.__class__ is Verdict:
            return asked
        match, charges, now, policy = asked
        if match.one_call:
            if match.shared or match.leased:
                store = self.shared if match.shared else self.leased
                answers = await self._ask(store, match, charges, now)
            else:
                answers = self.local.decide(charges, now)
            return self._conclude(match, answers, policy, request, charges)
        decisions = self._decide_here(match, charges, now)
        for there, places in self._stages(match, decisions):
            try:
                some = [charges[place] for place in places]
                answers = await self._ask(there, match, some, now)
            except Exception:
                for store, verb, args in self._give_back(match, charges, decisions, now):
                    await getattr(asynchronous(store), verb)(*args)
                raise
            except BaseException:
                self._release_places(match, charges, decisions)
                raise
            if not all(answers):
                for store, verb, args in self._give_back(match, charges, decisions, now):
                    await getattr(asynchronous(store), verb)(*args)
            decisions.update(zip(places, answers, strict=True))
        try:
            for place, store in self._shadows(match, charges, decisions, now):
                if store is self.local:
                    (decisions[place],) = store.decide([charges[place]], now)
                else:
                    (decisions[place],) = await self._ask(store, match, [charges[place]], now)
        except BaseException:
            self._release_places(match, charges, decisions)
            raise
        return self._conclude_some(match, decisions, policy, request, charges)

    def _prepare(self, request: Request) -> Any:
        """The rules that apply, the charges, the time and the policy they are of; or a Verdict, if no store has to be asked."""
        if self._pid != getpid():
            self.enter_process()
        shedding = self.shedding
        if shedding is not None and shedding.rejecting:
            shed = shedding.shed(request)
            if shed is not None:
                return self._reject(shed, request)
        policy = self.policy
        now = self.clock and self.clock()
        match, charges, refusal = self._charging.charges(policy, request, now)
        if refusal is not None:
            return self._refuse(match, charges, refusal, now, policy, request)
        if match.drops:
            dropped = self._dropped(match, charges)
            if dropped is not None:
                return self._drop(match, dropped, charges, now, policy, request)
        return match, charges, now, policy

    def _ask(
        self, store: Store, match: MatchedRules, charges: list[Charge], now: int | None
    ) -> Awaitable[list[Decision]]:
        """A store elsewhere."""
        side = self.stores.in_loop[id(store)]
        if not match.holds or store is not self.shared:
            return side.decide(charges, now)
        return decide_shielded(
            side, charges, now, partial(self.giving_back.release_all, store, charges)
        )

    def look(self, request: Request) -> PeekPlan:
        """Which counter of which store each rule would be asked about this request."""
        now = self.clock and self.clock()
        match, charges, refusal = self._charging.charges(self.policy, request, now)
        listed = None if refusal is None else refusal.listed
        asked: list[tuple[Store, Charge]] = []
        refused: dict[int, Decision] = {}
        for place, (rule, charge) in enumerate(zip(match.rules, charges, strict=True)):
            if listed is not None or is_refused(charge):
                refused[place] = self._denial(charge, now)
            else:
                asked.append((self.stores.of(rule), charge))
        return PeekPlan(match, [charge[0] for charge in charges], asked, refused, listed, now)

    def conclude_look(self, look: PeekPlan, decisions: list[Decision], request: Request) -> Verdict:
        """What `check` would have said; observers are not told."""
        match, peeked = look.match, iter(decisions)
        answers = [
            look.refused[place] if place in look.refused else next(peeked)
            for place in range(len(match.rules))
        ]
        denied_by, delay = _denied_or_delayed(match, answers)
        version, meters = self.policy.version, tuple(look.meters)
        return Verdict(
            denied_by is None, delay, denied_by, match, tuple(answers), version, request, meters,
            listed=look.listed,
        )  # fmt: skip

    def counters(
        self, request: Request, only: str | None
    ) -> Iterator[tuple[Store, CounterSpec, str]]:
        """Those of the request's keys: of all rules it meets, or of one."""
        wanted = None if only is None else rule_named(only, self.policy.rules).distinct_name
        now = self.clock and self.clock()
        for rule, (meter, key, _) in self._charging.counters(self.policy, request, now):
            if wanted is None or rule.distinct_name == wanted:
                yield self.stores.of(rule), countable(meter), key

    def override(self, name: str, value: str, override: Override | None) -> None:
        """Other numbers for one value of a rule's actor; None: no longer. Of this process alone."""
        rule = rule_named(name, self.policy.rules)
        if rule.key_from is None:
            raise ConfigError(
                f"rule {name!r} counts by {rule.actor}; overrides are by the value of one actor"
            )
        if not isinstance(value, str):
            said = f"value must be a str, the value of the rule's actor (got {shown(value)})"
            raise ConfigError(said + (f"; write '{value}'" if value.__class__ is int else ""))
        key = rule.key_from(value)
        if override is not None:
            meter = meter_with(rule.meter, override)
            self.stores.check_fit(meter)
            if rule.cost > meter.params.limit and not meter.denies_all:
                raise ConfigError(cost_never_passes(rule.cost, meter.params.limit))
        self.overrides.set_for(rule, key, override)

    def _decide_here(
        self, match: MatchedRules, charges: list[Charge], now: int | None
    ) -> dict[int, Decision]:
        """What the local store says, by the rules' places."""
        places = match.enforced if self.one_store else match.local
        if not places:
            return {}
        answers = self.local.decide([charges[place] for place in places], now)
        return dict(zip(places, answers, strict=True))

    def _stages(
        self, match: MatchedRules, decisions: dict[int, Decision]
    ) -> Iterator[tuple[Store, tuple[int, ...]]]:
        """The stores that are still to be asked, each if all before it let pass: from the nearest to the furthest."""
        if self.one_store:
            return
        for store, places in ((self.leased, match.leased), (self.shared, match.shared)):
            if places and all(decisions.values()):
                yield store, places

    def _give_back(
        self,
        match: MatchedRules,
        charges: list[Charge],
        decisions: dict[int, Decision],
        now: int | None,
    ) -> Iterator[StoreRefund]:
        """A store denied or failed: what those before it were charged comes back."""
        for place, decision in decisions.items():
            meter, key, cost = charges[place]
            if self.stores.of(match.rules[place]) is self.local:
                self.local.refund([charges[place]], charged_at(meter, decision), now)
                (decisions[place],) = self.local.peek([(meter, key, 0)], now)
            else:
                at = self.stores.charged_at(self.leased, meter, decision)
                yield StoreRefund(self.leased, refund_verb(decision), ([charges[place]], at, now))
                _, remaining, _, reset_us, _ = decision.outcome
                outcome = (True, remaining + cost, 0, reset_us, 0)
                decisions[place] = decision._replace(outcome=outcome)

    def _release_places(
        self, match: MatchedRules, charges: list[Charge], decisions: dict[int, Decision]
    ) -> None:
        """Cancelled, or interrupted as by a timeout of gevent: what was charged stands, but a place would be held for no request."""
        if match.holds:
            for place, decision in decisions.items():
                store = self.stores.of(match.rules[place])
                self.giving_back.release(store, [charges[place]], [decision])

    def _shadows(
        self,
        match: MatchedRules,
        charges: list[Charge],
        decisions: dict[int, Decision],
        now: int | None,
    ) -> Iterator[tuple[int, Store]]:
        """The rules in the shadow that are still to be asked, each by itself: they count what passed."""
        if not all(decisions.values()):
            return
        for place in match.shadows:
            if is_refused(charges[place]):
                decisions[place] = self._denial(charges[place], now)
            else:
                yield place, self.stores.of(match.rules[place])

    def _conclude_some(
        self,
        match: MatchedRules,
        decisions: dict[int, Decision],
        policy: Policy,
        request: Request,
        charges: list[Charge],
        listed: str | None = None,
    ) -> Verdict:
        """Who comes after a denial was not asked."""
        order = tuple(sorted(decisions))
        asked = match if len(order) == len(match.rules) else match.pick(order)
        charged = [charges[place] for place in order]
        answers = [decisions[place] for place in order]
        return self._conclude(asked, answers, policy, request, charged, listed)

    def _conclude(
        self,
        match: MatchedRules,
        decisions: list[Decision],
        policy: Policy,
        request: Request,
        charges: list[Charge],
        listed: str | None = None,
    ) -> Verdict:
        """The verdict of the rules that were asked; observers are told."""
        denied_by, delay = None, 0.0
        for decision in decisions:
            outcome = decision.outcome
            if not outcome[0] or outcome[4]:
                denied_by, delay = _denied_or_delayed(match, decisions)
                break
        meters = match.meters
        if match.varies or self.stored.by_rule or self.overrides.by_rule:
            meters = (
                (charges[0][0],) if len(charges) == 1 else tuple([charge[0] for charge in charges])
            )
        version, answers = policy.version, tuple(decisions)
        verdict: Verdict = _new(
            Verdict,
            (
                denied_by is None,
                delay,
                denied_by,
                match,
                answers,
                version,
                request,
                meters,
                None,
                listed,
            ),
        )
        if self.observers:
            self._notify(verdict)
        return verdict

    def _reject(self, shed: Shed, request: Request) -> Verdict:
        """Shed: no rule is asked, so none is charged."""
        version = self.policy.version
        verdict = Verdict(False, 0.0, None, NO_RULES, (), version, request, (), shed)
        if self.observers:
            self._notify(verdict)
        return verdict

    def _refuse(
        self,
        match: MatchedRules,
        charges: list[Charge],
        refusal: Refusal,
        now: int | None,
        policy: Policy,
        request: Request,
    ) -> Verdict:
        """The last rule denies, so none is charged; a local one before it that denies as well is the one to name."""
        last = len(charges) - 1
        decisions: dict[int, Decision] = {}
        for place, charge in enumerate(charges[:last]):
            rule = match.rules[place]
            if rule.mode == "enforce" and self.stores.of(rule) is self.local:
                (decision,) = self.local.peek([charge], now)
                if decision:
                    (decision,) = self.local.peek([(charge[0], charge[1], 0)], now)
                decisions[place] = decision
        decisions[last] = self._denial(charges[last], now)
        return self._conclude_some(match, decisions, policy, request, charges, refusal.listed)

    def _dropped(self, match: MatchedRules, charges: list[Charge]) -> int | None:
        """The place of the first rule by which chance denies; every such rule counts the arrival."""
        found = None
        for place in match.drops:
            meter, key, _ = charges[place]
            if self.dropping.drops(meter, key) and found is None:
                found = place
        return found

    def _drop(
        self,
        match: MatchedRules,
        place: int,
        charges: list[Charge],
        now: int | None,
        policy: Policy,
        request: Request,
    ) -> Verdict:
        """No rule is asked, so none is charged."""
        meter, key, cost = charges[place]
        at = wall_us() if now is None else now
        decision = Decision(DROPPED, meter.params.limit, key, cost, at)
        only = match.pick((place,))
        return self._conclude(only, [decision], policy, request, [charges[place]])

    def _denial(self, charge: Charge, now: int | None) -> Decision:
        """Of a charge that is refused."""
        meter, key, cost = charge
        at = wall_us() if now is None else now
        shown_key = NO_IDENTITY if key is REFUSED_KEY else key
        return Decision(REFUSED, meter.params.limit, shown_key, cost, at)

    def _notify(self, verdict: Verdict) -> None:
        report = getattr(verdict.request, "report", None)
        if report is None:
            call_observers(self.observers, verdict)
        else:
            report.add(self.observers, verdict)


def _states(shedding: ReferenceType[Shedding]) -> list[GaugeState]:
    """For observers, which live longer than a guard and must not keep its thread alive."""
    measured = shedding()
    return [] if measured is None else measured.states()


def _observers(observers: Sequence[str | Observer]) -> tuple[Observer, ...]:
    if isinstance(observers, str) or not isinstance(observers, Iterable):
        raise ConfigError(
            f"observers= must be a list (got {shown(observers)}); write observers=[{shown(observers)}]"
        )
    return tuple(map(_observer, observers))


def _observer(observer: str | Observer) -> Observer:
    """By the name of an entry point in diana.observers, or as it is."""
    return (
        cast("Observer", plugin("observers", observer)()) if isinstance(observer, str) else observer
    )


def _denied_or_delayed(match: MatchedRules, decisions: list[Decision]) -> tuple[Rule | None, float]:
    """The first rule that denies; else how long the request is to be delayed."""
    enforced = [(match.rules[place], decisions[place]) for place in match.enforced]
    denied_by = next((rule for rule, decision in enforced if not decision), None)
    if denied_by is not None:
        return denied_by, 0.0
    return None, max((decision.delay for _, decision in enforced), default=0.0)
