"""All rules, by request: what happens, in order.

1. Which rules apply? 2. Who is asking, for each of them? 3. The local ones are asked first, so that a request they deny costs no round
trip; then the global ones, and if those deny, the local charge is given back. 4. Those in the shadow count what passed. 5. Observers
are told.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple, cast

from diana.core.address import client_of_request
from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.decision import NEVER, Decision
from diana.core.match import Match
from diana.core.meter import Meter
from diana.core.path import Reading
from diana.core.plugins import plugin
from diana.core.policy import Policy
from diana.core.request import Contradiction, Request
from diana.core.rule import Rule
from diana.core.verdict import Verdict
from diana.stores import asynchronous, open_store, refund_verb
from diana.stores.clock import checked_clock, wall_us

log = logging.getLogger("diana")

NO_IDENTITY = "?"
"""The key of all who have none, under `missing: together`."""
REFUSED_KEY = "!"
"""Not a key to count by: the rule denies who has no identity."""
SKIPPED_KEY = "-"
"""Not a key to count by: the rule leaves alone who has no identity."""
KEYS_OF_MISSING = {"deny": REFUSED_KEY, "skip": SKIPPED_KEY, "together": NO_IDENTITY}
REFUSED = (False, 0, NEVER, 0, 0)

_new = tuple.__new__


class StoreCall(NamedTuple):
    """A method of a store to call; what it gives is of no interest."""

    store: Store
    verb: str
    args: tuple[Any, ...]


Charge = tuple[Meter, str, int]
"""As a store takes it."""


class Judge:
    """A policy on its stores: all that both shells share."""

    def __init__(
        self,
        policy: Policy,
        store: str | Store | Client | None,
        clock: Clock | None,
        observers: Sequence[str | Observer],
    ) -> None:
        self.policy = policy
        self.clock = checked_clock(clock)
        self.observers = tuple(map(_observer, observers))
        self.local = open_store(policy.settings.local_store)
        chosen = store
        if chosen is None:  # not `or`: an empty store is false
            chosen = os.environ.get("DIANA_STORE") or policy.settings.store
        settings = policy.settings
        self.shared = self.local
        if chosen is not None:
            self.shared = open_store(
                chosen,
                namespace=settings.namespace,
                budget_us=settings.store_budget_us,
                nodes=settings.nodes,
            )
        self.one_store = self.shared is self.local
        self.owned = [self.local]
        if isinstance(chosen, str):
            self.owned.append(self.shared)
        self._warned_not_shared = chosen is not None
        self._warn_if_not_shared()
        for observer in self.observers:
            if hasattr(observer, "watch") and hasattr(self.shared, "counts"):
                observer.watch(self.shared.counts)
        self._ashared = asynchronous(self.shared)
        self.identity_errors = 0
        self._logged: set[str] = set()

    def beside(self, policy: Policy) -> Judge:
        """Other rules on the same stores, which stay this one's to close."""
        other = copy(self)
        other.policy = policy
        other.owned = []
        other.identity_errors = 0
        other._logged = set()
        return other

    def swap(self, policy: Policy) -> None:
        """Other rules from now on; who is being judged is judged by those it began with. What was counted stays."""
        self.policy = policy
        self._warn_if_not_shared()

    def _warn_if_not_shared(self) -> None:
        if not self._warned_not_shared and any(
            rule.scope == "global" for rule in self.policy.rules
        ):
            self._warned_not_shared = True
            log.warning("no store is set, so rules of scope global count on this machine only")

    def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        policy = self.policy
        match, charges, refusing = self._charges(policy.match(request), request)
        now = self.clock and self.clock()
        if refusing is not None:
            return self._refuse(refusing, match, charges, now, policy, request)
        if match.one_call or (self.one_store and not match.shadows):
            store = self.shared if match.shared else self.local
            return self._conclude(match, store.decide(charges, now), policy, request)
        decisions = self._decide_here(match, charges, now)
        there = self._charges_there(match, charges, decisions)
        if there:
            try:
                answers = self.shared.decide(there, now)
            except Exception:
                self._give_back(charges, decisions, now)
                raise
            self._add_shared(match, charges, decisions, answers, now)
        for place, store in self._shadows(match, charges, decisions, now):
            (decisions[place],) = store.decide([charges[place]], now)
        return self._conclude_some(match, decisions, policy, request)

    async def acheck(self, request: Request) -> Verdict:
        """The same for coroutines: it awaits the shared store."""
        if self.one_store:
            return self.check(request)
        policy = self.policy
        match, charges, refusing = self._charges(policy.match(request), request)
        now = self.clock and self.clock()
        if refusing is not None:
            return self._refuse(refusing, match, charges, now, policy, request)
        if match.one_call:
            decided = self._ashared.decide(charges, now) if match.shared else None
            answers = self.local.decide(charges, now) if decided is None else await decided
            return self._conclude(match, answers, policy, request)
        decisions = self._decide_here(match, charges, now)
        there = self._charges_there(match, charges, decisions)
        if there:
            try:
                answers = await self._ashared.decide(there, now)
            except Exception:
                self._give_back(charges, decisions, now)
                raise
            self._add_shared(match, charges, decisions, answers, now)
        for place, store in self._shadows(match, charges, decisions, now):
            (decisions[place],) = await asynchronous(store).decide([charges[place]], now)
        return self._conclude_some(match, decisions, policy, request)

    def refunds(self, verdict: Verdict) -> Iterator[StoreCall]:
        """What takes back what an allowed request was charged."""
        if not verdict.allowed:
            return
        for rule, decision in zip(verdict.rules, verdict.decisions, strict=True):
            if decision:
                charge = (rule.meter, decision.key, decision.cost)
                now = self.clock and self.clock()
                verb = refund_verb(decision)
                yield StoreCall(self._store_of(rule), verb, ([charge], decision.at, now))

    def _charges(self, match: Match, request: Request) -> tuple[Match, list[Charge], Rule | None]:
        """The rules to ask, what to charge to each, and the rule that refuses who has no identity, if one does."""
        if match.readings is not None:
            return self._charges_of_readings(match, match.readings, request)
        charges: list[Charge] = []
        complete = True
        for rule in match.rules:
            try:
                key = rule.key_of(request)
            except Exception as error:
                key, complete = self._key_after_error(rule, error, request), False
            if key is None:
                key, complete = self._key_without_identity(rule, rule.missing, request), False
            charges.append((rule.meter, key, rule.cost))
        return (match, charges, None) if complete else _without_skipped(match, charges)

    def _charges_of_readings(
        self, match: Match, readings: tuple[Reading, ...], request: Request
    ) -> tuple[Match, list[Charge], Rule | None]:
        """A rule that counts by the path is charged once for every different value that the readings give."""
        places: list[int] = []
        charges: list[Charge] = []
        for place, rule in enumerate(match.rules):
            if not rule.reads_path:
                keys = {self._key(rule, request)}
            elif not readings:
                keys = {self._key_after_error(rule, Contradiction(), request)}
            else:
                keys = set()
                for reading in filter(rule.url.covers_path, readings):
                    request.read_as(reading)
                    keys.add(self._key(rule, request))
                request.read_as(None)
            places += [place] * len(keys)
            charges += [(rule.meter, key, rule.cost) for key in sorted(keys)]
        return _without_skipped(match.pick(tuple(places)), charges)

    def _key(self, rule: Rule, request: Request) -> str:
        try:
            key = rule.key_of(request)
        except Exception as error:
            return self._key_after_error(rule, error, request)
        return key or self._key_without_identity(rule, rule.missing, request)

    def _key_after_error(self, rule: Rule, error: Exception, request: Request) -> str:
        """As if it were missing, but never skipped: a client could choose to be."""
        missing = rule.missing
        if isinstance(error, Contradiction):
            missing = "together" if missing == "skip" else missing
        else:
            self._count_error(rule, error, request)
            missing = "ip" if missing == "skip" else missing
        return self._key_without_identity(rule, missing, request)

    def _key_without_identity(self, rule: Rule, missing: str, request: Request) -> str:
        if missing == "ip":
            try:
                address = client_of_request(request, self.policy.settings.proxies)
                return NO_IDENTITY + (address or "")
            except Exception as error:
                self._count_error(rule, error, request)
                return NO_IDENTITY
        return KEYS_OF_MISSING[missing]

    def _decide_here(
        self, match: Match, charges: list[Charge], now: int | None
    ) -> dict[int, Decision]:
        """What the local store says, by the rules' places."""
        places = match.enforced if self.one_store else match.local
        if not places:
            return {}
        answers = self.local.decide([charges[place] for place in places], now)
        return dict(zip(places, answers, strict=True))

    def _charges_there(
        self, match: Match, charges: list[Charge], decisions: dict[int, Decision]
    ) -> list[Charge]:
        """For the shared store; none if a local rule denies."""
        if self.one_store or not all(decisions.values()):
            return []
        return [charges[place] for place in match.shared]

    def _add_shared(
        self,
        match: Match,
        charges: list[Charge],
        decisions: dict[int, Decision],
        answers: list[Decision],
        now: int | None,
    ) -> None:
        if not all(answers):
            self._give_back(charges, decisions, now)
        decisions.update(zip(match.shared, answers, strict=True))

    def _give_back(
        self, charges: list[Charge], decisions: dict[int, Decision], now: int | None
    ) -> None:
        """The shared store denied or failed: what the local rules were charged comes back."""
        for place, decision in decisions.items():
            meter, key, _ = charges[place]
            self.local.refund([charges[place]], decision.at, now)
            (decisions[place],) = self.local.peek([(meter, key, 0)], now)

    def _shadows(
        self,
        match: Match,
        charges: list[Charge],
        decisions: dict[int, Decision],
        now: int | None,
    ) -> Iterator[tuple[int, Store]]:
        """The rules in the shadow that are still to be asked, each by itself: they count what passed."""
        if not all(decisions.values()):
            return
        for place in match.shadows:
            rule = match.rules[place]
            if charges[place][1] is REFUSED_KEY:
                decisions[place] = self._denial(rule, now)
            else:
                yield place, self._store_of(rule)

    def _conclude_some(
        self, match: Match, decisions: dict[int, Decision], policy: Policy, request: Request
    ) -> Verdict:
        """Who comes after a denial was not asked."""
        order = tuple(sorted(decisions))
        asked = match if len(order) == len(match.rules) else match.pick(order)
        return self._conclude(asked, [decisions[place] for place in order], policy, request)

    def _conclude(
        self, match: Match, decisions: list[Decision], policy: Policy, request: Request
    ) -> Verdict:
        """The verdict of the rules that were asked; observers are told."""
        denied_by, delay = None, 0.0
        for decision in decisions:
            outcome = decision.outcome
            if not outcome[0] or outcome[4]:
                denied_by, delay = _denied_or_delayed(match, decisions)
                break
        verdict: Verdict = _new(
            Verdict,
            (denied_by is None, delay, denied_by, match, tuple(decisions), policy.version, request),
        )
        if self.observers:
            self._notify(verdict)
        return verdict

    def _refuse(
        self,
        refusing: Rule,
        before: Match,
        charges: list[Charge],
        now: int | None,
        policy: Policy,
        request: Request,
    ) -> Verdict:
        """No rule is charged; a local one before it that denies as well is the one to name."""
        asked, decisions = [], []
        for rule, charge in zip(before.rules, charges, strict=True):
            if rule.mode == "enforce" and self._store_of(rule) is self.local:
                (decision,) = self.local.peek([charge], now)
                if decision:
                    (decision,) = self.local.peek([(charge[0], charge[1], 0)], now)
                asked.append(rule)
                decisions.append(decision)
        decisions.append(self._denial(refusing, now))
        return self._conclude(Match((*asked, refusing)), decisions, policy, request)

    def _denial(self, rule: Rule, now: int | None) -> Decision:
        at = wall_us() if now is None else now
        return Decision(REFUSED, rule.meter.params.limit, NO_IDENTITY, rule.cost, at)

    def _store_of(self, rule: Rule) -> Store:
        return self.local if rule.scope == "local" else self.shared

    def _notify(self, verdict: Verdict) -> None:
        for observer in self.observers:
            try:
                observer(verdict.request, verdict)
            except Exception:
                log.exception("an observer failed; the verdict stands")

    def _count_error(self, rule: Rule, error: Exception, request: Request) -> None:
        """Counted and told in the verdict always, logged once per rule: a client must not be able to fill the log."""
        self.identity_errors += 1
        request.identity_errors = {**(request.identity_errors or {}), rule.name: error}
        if rule.name not in self._logged:
            self._logged.add(rule.name)
            log.warning("finding the %s of rule %r failed: %r", rule.actor, rule.name, error)


def _observer(observer: str | Observer) -> Observer:
    """By the name of an entry point in diana.observers, or as it is."""
    return (
        cast("Observer", plugin("observers", observer)()) if isinstance(observer, str) else observer
    )


def _without_skipped(
    match: Match, charges: list[Charge]
) -> tuple[Match, list[Charge], Rule | None]:
    """Rules that skip who has no identity are not asked; one that refuses ends the list."""
    places: list[int] = []
    refusing = None
    for place, (_, key, _) in enumerate(charges):
        if key is REFUSED_KEY and match.rules[place].mode == "enforce":
            refusing = match.rules[place]
            break
        if key is not SKIPPED_KEY:
            places.append(place)
    if len(places) == len(match.rules):
        return match, charges, refusing
    return match.pick(tuple(places)), [charges[place] for place in places], refusing


def _denied_or_delayed(match: Match, decisions: list[Decision]) -> tuple[Rule | None, float]:
    """The first rule that denies; else how long the request is to be delayed."""
    enforced = [(match.rules[place], decisions[place]) for place in match.enforced]
    denied_by = next((rule for rule, decision in enforced if not decision), None)
    if denied_by is not None:
        return denied_by, 0.0
    return None, max((decision.delay for _, decision in enforced), default=0.0)
