"""All rules, by request: what happens, in order.

1. Which rules apply? 2. Who is asking, for each of them? 3. The local ones are asked first, so that a request they deny costs no round
trip; then the global ones, and if those deny, the local charge is given back. 4. Those in the shadow count what passed. 5. Observers
are told.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from diana.core.address import client_of_request
from diana.core.charge import Charges
from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.decision import NEVER, Decision
from diana.core.exchange import adrive, drive
from diana.core.meter import Meter
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
"""Not a key to count by: the rule denies who has no identity, but stands in the shadow."""
REFUSED = (False, 0, NEVER, 0, 0)

T = TypeVar("T")

_new = tuple.__new__


def _observer(observer: str | Observer) -> Observer:
    """By the name of an entry point in diana.observers, or as it is."""
    return (
        cast("Observer", plugin("observers", observer)()) if isinstance(observer, str) else observer
    )


class Ask(NamedTuple):
    """Something for a store to do."""

    store: Store
    verb: str
    args: tuple[Any, ...]


Steps = Generator[Ask, Any, T]


def perform(ask: Ask) -> Any:
    return getattr(ask.store, ask.verb)(*ask.args)


async def aperform(ask: Ask) -> Any:
    return await getattr(asynchronous(ask.store), ask.verb)(*ask.args)


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
        self._told_not_shared = chosen is not None
        self._tell_if_not_shared()
        for observer in self.observers:
            if hasattr(observer, "watch") and hasattr(self.shared, "counts"):
                observer.watch(self.shared.counts)
        self._shared_side = asynchronous(self.shared)
        self.identity_errors = 0
        self._reported: set[str] = set()

    def swap(self, policy: Policy) -> None:
        """Other rules from now on; who is being judged is judged by those it began with. What was counted stays."""
        self.policy = policy
        self._tell_if_not_shared()

    def _tell_if_not_shared(self) -> None:
        if not self._told_not_shared and any(rule.scope == "global" for rule in self.policy.rules):
            self._told_not_shared = True
            log.warning("no store is set, so rules of scope global count on this machine only")

    def check(self, request: Request) -> Verdict:
        """Whether every rule lets the request pass; if one denies, none is charged."""
        policy = self.policy
        if not self.one_store or policy.has_shadows:
            return drive(self.checking(request), perform)
        now = self.clock and self.clock()
        rules, charges, refused_by = self._asked(policy.match(request), request)
        if refused_by is not None:
            return self._told(self._refusal(policy, refused_by, rules, charges, request, now))
        decisions = self.local.decide(charges, now)
        verdict = self._verdict(policy, rules, decisions, request)
        return self._told(verdict) if self.observers else verdict

    async def acheck(self, request: Request) -> Verdict:
        """The same for coroutines, with the shortest way where one question to the shared store is all."""
        policy = self.policy
        if self.one_store and not policy.has_shadows:
            return self.check(request)
        if policy.all_global:
            now = self.clock and self.clock()
            rules, charges, refused_by = self._asked(policy.match(request), request)
            if refused_by is None and rules:
                decisions = await self._shared_side.decide(charges, now)
                return self._told(self._verdict(policy, rules, decisions, request))
        return await adrive(self.checking(request), aperform)

    def checking(self, request: Request) -> Steps[Verdict]:
        """The same where a store may have to be waited for."""
        policy = self.policy
        now = self.clock and self.clock()
        rules, charges, refused_by = self._asked(policy.match(request), request)
        if refused_by is not None:
            return self._told(self._refusal(policy, refused_by, rules, charges, request, now))
        rules, decisions = yield from self._decide(rules, charges, now)
        return self._told(self._verdict(policy, rules, decisions, request))

    def refunding(self, verdict: Verdict) -> Steps[None]:
        if not verdict.allowed:
            return
        for rule, decision in zip(verdict.rules, verdict.decisions, strict=True):
            if decision:
                charge = (rule.meter, decision.key, decision.cost)
                now = self.clock and self.clock()
                refund = refund_verb(decision)
                yield Ask(self._store_of(rule), refund, ([charge], decision.at, now))

    def closing(self) -> Steps[None]:
        for store in self.owned:
            yield Ask(store, "close", ())

    def _asked(
        self, matched: tuple[Rule, ...], request: Request
    ) -> tuple[tuple[Rule, ...], list[tuple[Meter, str, int]], Rule | None]:
        """The rules to ask, the charge to each, and the rule that refuses who has no identity, if one does."""
        rules: list[Rule] = []
        charges: list[tuple[Meter, str, int]] = []
        for rule in matched:
            missing = rule.missing
            try:
                key = rule.key_of(request)
            except Exception as error:
                key, missing = None, self._missing_for(rule, error)
            if key is None:
                if missing == "skip":
                    continue
                if missing == "deny" and rule.mode == "enforce":
                    return tuple(rules), charges, rule
                key = self._key_without_identity(rule, missing, request)
            rules.append(rule)
            charges.append((rule.meter, key, rule.cost))
        # The very tuple that was matched, if it can be: whoever remembers something of it finds it at once.
        return (matched if len(rules) == len(matched) else tuple(rules)), charges, None

    def _missing_for(self, rule: Rule, error: Exception) -> str:
        """Never skipped, and who contradicts themselves not counted by address either: a client could choose to be."""
        if isinstance(error, Contradiction):
            return "deny" if rule.missing == "deny" else "together"
        self._report(rule, error)
        return "ip" if rule.missing == "skip" else rule.missing

    def _key_without_identity(self, rule: Rule, missing: str, request: Request) -> str:
        if missing == "deny":
            return REFUSED_KEY
        if missing == "together":
            return NO_IDENTITY
        try:
            return NO_IDENTITY + (client_of_request(request, self.policy.settings.proxies) or "")
        except Exception as error:
            self._report(rule, error)
            return NO_IDENTITY

    def _decide(
        self, rules: tuple[Rule, ...], charges: Charges, now: int | None
    ) -> Steps[tuple[tuple[Rule, ...], list[Decision]]]:
        """Local rules, then global ones, then those in the shadow; who comes after a denial is not asked."""
        decisions: dict[int, Decision] = {}
        here = self._places(rules, self.local)
        there = [] if self.one_store else self._places(rules, self.shared)
        for places, store in ((here, self.local), (there, self.shared)):
            if places and all(decisions.values()):
                try:
                    asked = [charges[place] for place in places]
                    some = yield Ask(store, "decide", (asked, now))
                except Exception:
                    self._give_back(
                        [place for place in here if place in decisions], charges, decisions, now
                    )
                    raise
                decisions.update(zip(places, some, strict=True))
        if not all(decisions.values()):
            if not all(decisions[place] for place in there if place in decisions):
                self._give_back(here, charges, decisions, now)
        else:
            for place, rule in enumerate(rules):
                if rule.mode == "shadow":
                    said = yield from self._said_in_the_shadow(rule, charges[place], now)
                    decisions[place] = said
        order = sorted(decisions)
        # The very tuple, if all were asked: whoever remembers something of it finds it at once.
        asked_rules = rules if len(order) == len(rules) else tuple(rules[place] for place in order)
        return asked_rules, [decisions[place] for place in order]

    def _said_in_the_shadow(
        self, rule: Rule, charge: tuple[Meter, str, int], now: int | None
    ) -> Steps[Decision]:
        """What a rule in the shadow would have said."""
        if charge[1] == REFUSED_KEY:
            return self._denial(rule, now)
        decisions: list[Decision] = yield Ask(self._store_of(rule), "decide", ([charge], now))
        return decisions[0]

    def _denial(self, rule: Rule, now: int | None) -> Decision:
        at = wall_us() if now is None else now
        return Decision(REFUSED, rule.meter.params.limit, NO_IDENTITY, rule.cost, at)

    def _give_back(
        self, places: list[int], charges: Charges, decisions: dict[int, Decision], now: int | None
    ) -> None:
        """A global rule denied: what the local ones were charged comes back."""
        for place in places:
            meter, key, _ = charges[place]
            self.local.refund([charges[place]], decisions[place].at, now)
            (decisions[place],) = self.local.peek([(meter, key, 0)], now)

    def _places(self, rules: tuple[Rule, ...], store: Store) -> list[int]:
        return [
            place
            for place, rule in enumerate(rules)
            if rule.mode == "enforce" and self._store_of(rule) is store
        ]

    def _store_of(self, rule: Rule) -> Store:
        return self.local if rule.scope == "local" else self.shared

    def _verdict(
        self,
        policy: Policy,
        rules: tuple[Rule, ...],
        decisions: list[Decision],
        request: Request,
    ) -> Verdict:
        denied_by = None
        for decision in decisions:
            if not decision.outcome[0]:
                denied_by = self._first_denying(rules, decisions)
                break
        delay = 0.0
        if denied_by is None and policy.has_queues:
            asked = zip(rules, decisions, strict=True)
            delays = (decision.delay for rule, decision in asked if rule.mode == "enforce")
            delay = max(delays, default=0.0)
        allowed = denied_by is None
        said = tuple(decisions)
        return _new(Verdict, (allowed, delay, denied_by, rules, said, policy.version, request))

    def _first_denying(self, rules: tuple[Rule, ...], decisions: list[Decision]) -> Rule | None:
        asked = zip(rules, decisions, strict=True)
        denying = (rule for rule, decision in asked if not decision and rule.mode == "enforce")
        return next(denying, None)

    def _refusal(
        self,
        policy: Policy,
        refusing: Rule,
        before: tuple[Rule, ...],
        charges: Charges,
        request: Request,
        now: int | None,
    ) -> Verdict:
        """Nobody is charged; a local rule before it that denies as well is the one to name."""
        asked, said = [], []
        for rule, charge in zip(before, charges, strict=True):
            if rule.mode == "enforce" and self._store_of(rule) is self.local:
                (decision,) = self.local.peek([charge], now)
                if decision:
                    (decision,) = self.local.peek([(charge[0], charge[1], 0)], now)
                asked.append(rule)
                said.append(decision)
        said.append(self._denial(refusing, now))
        return self._verdict(policy, (*asked, refusing), said, request)

    def _told(self, verdict: Verdict) -> Verdict:
        for observer in self.observers:
            try:
                observer(verdict.request, verdict)
            except Exception:
                log.exception("an observer failed; the verdict stands")
        return verdict

    def _report(self, rule: Rule, error: Exception) -> None:
        """Counted always, logged once per rule: a client must not be able to fill the log."""
        self.identity_errors += 1
        if rule.name not in self._reported:
            self._reported.add(rule.name)
            log.warning("finding the %s of rule %r failed: %r", rule.actor, rule.name, error)
