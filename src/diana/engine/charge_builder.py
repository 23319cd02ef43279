"""Who is asking, for each of the rules? From a policy and a request to the charges that a store takes.

A rule whose actor finds nothing does what its `missing` says; an error in finding it is the request's problem, never the store's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from diana.core.client_address import Proxies, client_of_request
from diana.core.counter import CounterSpec
from diana.core.limit_adjustments import (
    LiveOverrides,
    MetersByCode,
    cost_by_code,
    meter_by_code,
    skip_reason,
)
from diana.core.matched_rules import MatchedRules
from diana.core.node_share import Shares
from diana.core.path_readings import PathReading
from diana.core.policy import Policy
from diana.core.request import Contradiction, Request
from diana.core.rule import Rule
from diana.engine.function_errors import FunctionErrors
from diana.runtime.clock import wall_us

log = logging.getLogger("diana")

NO_IDENTITY = "?"
"""The key of all who have none, under `missing: together`."""
REFUSED_KEY = "!"
"""Not a key to count by: the rule denies who has no identity."""
SKIPPED_KEY = "-"
"""Not a key to count by: the rule leaves alone who has no identity."""
KEYS_OF_MISSING = {"deny": REFUSED_KEY, "skip": SKIPPED_KEY, "together": NO_IDENTITY}


Charge = tuple[CounterSpec, str, int]
"""As a store takes it."""


class Refusal(NamedTuple):
    """The last of the rules denies the request, whatever was counted: it has no identity (`missing: deny`), or its limit is 0."""

    listed: str | None = None
    """Or it is on the rule's `deny` list: by what. Then no other rule is asked."""


REFUSAL = Refusal()


class ChargeBuilder:
    def __init__(self, stored: LiveOverrides, overrides: LiveOverrides, shares: Shares) -> None:
        """The overrides of the store, and those of code; and this node's part of limits that are divided."""
        self._shares = shares
        self._stored = stored
        self._overrides = overrides
        self._by_code = MetersByCode()
        self.errors = 0
        """How often finding an identity failed."""
        self._logged: set[tuple[str, str]] = set()
        self.function_errors = FunctionErrors()
        """What `cost`, `limit` and `allow` in code raised."""

    def charges(
        self, policy: Policy, request: Request, now: int | None
    ) -> tuple[MatchedRules, list[Charge], Refusal | None]:
        """The rules to ask, what to charge to each, and whether the last of them refuses the request."""
        match = policy.match(request)
        if match.denying:
            refused = self._refused_by_list(match, policy, request)
            if refused is not None:
                return refused
        proxies, note = policy.settings.proxies, self.function_errors.note
        if match.readings is not None:
            return self._charges_of_readings(match, match.readings, proxies, request, now)
        by_terms = match.varies or self._stored.by_rule or self._overrides.by_rule
        charges: list[Charge] = []
        complete = not match.refuses
        for rule, has_lists, key_of, meter, cost in match.asked:
            if has_lists:
                if rule.deny and self._is_listed_in_shadow(rule, None, request):
                    charges.append((meter, REFUSED_KEY, cost))
                    complete = False
                    continue
                if skip_reason(rule, request, None, note, self._count_error) is not None:
                    charges.append((meter, SKIPPED_KEY, cost))
                    complete = False
                    continue
            try:
                key = key_of(request)
            except Exception as error:
                key, complete = self._key_after_error(rule, error, proxies, request), False
            if key is None:
                key = self._key_without_identity(rule, rule.missing, proxies, request)
                complete = False
            if by_terms:
                charge = self._charge(rule, key, request, now)
                charges.append(charge)
                if charge[0].denies_all:
                    complete = False
            else:
                charges.append((meter, key, cost))
        return (match, charges, None) if complete else _without_skipped(match, charges)

    def counters(
        self, policy: Policy, request: Request, now: int | None
    ) -> Iterator[tuple[Rule, Charge]]:
        """What the request is counted by, also of rules that a rule before them, or a list, keeps from being asked."""
        match = policy.match(request)
        for rule in match.rules:
            if skip_reason(rule, request, match.readings) is None:
                for key in self._keys(rule, match.readings, policy.settings.proxies, request):
                    if key not in (REFUSED_KEY, SKIPPED_KEY):
                        yield rule, self._charge(rule, key, request, now)

    def _refused_by_list(
        self, match: MatchedRules, policy: Policy, request: Request
    ) -> tuple[MatchedRules, list[Charge], Refusal] | None:
        for place in match.denying:
            rule = match.rules[place]
            listed = self._listed(rule, match.readings, request)
            if listed is not None:
                key = self._key(rule, policy.settings.proxies, request)
                key = NO_IDENTITY if key in (REFUSED_KEY, SKIPPED_KEY) else key
                return match.pick((place,)), [(rule.meter, key, rule.cost)], Refusal(listed)
        return None

    def _listed(
        self, rule: Rule, readings: tuple[PathReading, ...] | None, request: Request
    ) -> str | None:
        """What of the rule's `deny` list the request is."""

        def note(spelling: str, error: Exception) -> None:
            self._count_error(rule, request, f"{spelling} of the deny list", error)

        for roster in rule.deny:
            found = roster.denies(request, readings, note)
            if found is not None:
                return found
        return None

    def _is_listed_in_shadow(
        self, rule: Rule, readings: tuple[PathReading, ...] | None, request: Request
    ) -> bool:
        if rule.mode == "enforce":
            return False
        found = self._listed(rule, readings, request)
        if found is None:
            return False
        request.shadow_listed = {**(request.shadow_listed or {}), rule.distinct_name: found}
        return True

    def _charge(self, rule: Rule, key: str, request: Request, now: int | None) -> Charge:
        """Under the numbers that hold for this client, and for this node."""
        if key is REFUSED_KEY:
            return rule.meter, key, rule.cost  # it is counted nowhere
        charge = self._charge_of_fleet(rule, key, request, now)
        if rule.scope != "divided" or charge[0].denies_all:
            return charge
        meter, key, cost = charge
        return self._shares.of(meter), key, cost

    def _charge_of_fleet(self, rule: Rule, key: str, request: Request, now: int | None) -> Charge:
        """Under the numbers that hold for this client: the store's override, the code's, the file's, its tier's, the rule's own."""
        functions = rule.functions
        note = self.function_errors.note
        cost = rule.cost if functions is None else cost_by_code(rule, request, note)
        live = None
        if self._stored.by_rule:
            live = self._stored.find(rule, key)
            if live is not None and live.until_us is not None:
                live = live if _is_before(now, live.until_us) else None
        if live is None and self._overrides.by_rule:
            live = self._overrides.find(rule, key)
            if live is not None and live.until_us is not None:
                live = live if _is_before(now, live.until_us) else None
        if live is not None:
            meter = live.ready if live.beside is rule.meter else live.make_ready(rule.meter)
            if meter is not None:
                return meter, key, cost
        if rule.overrides:
            written = rule.overrides.get(key)
            if written is not None and (
                written.until_us is None or _is_before(now, written.until_us)
            ):
                return written.meter, key, cost
        if rule.tiers is not None:
            note_tier = partial(self._count_error, rule, request, "tier")
            return rule.tiers.meter(request, rule.meter, note_tier), key, cost
        if functions is not None:
            return meter_by_code(rule, request, self._by_code, note), key, cost
        return rule.meter, key, cost

    def _charges_of_readings(
        self,
        match: MatchedRules,
        readings: tuple[PathReading, ...],
        proxies: Proxies,
        request: Request,
        now: int | None,
    ) -> tuple[MatchedRules, list[Charge], Refusal | None]:
        """A rule that counts by the path is charged once for every different value that the readings give."""
        places: list[int] = []
        charges: list[Charge] = []
        note = self.function_errors.note
        for place, rule in enumerate(match.rules):
            if rule.deny and self._is_listed_in_shadow(rule, readings, request):
                places.append(place)
                charges.append((rule.meter, REFUSED_KEY, rule.cost))
                continue
            if (
                rule.varies
                and skip_reason(rule, request, readings, note, self._count_error) is not None
            ):
                continue
            keys = self._keys(rule, readings, proxies, request)
            places += [place] * len(keys)
            charges += [self._charge(rule, key, request, now) for key in sorted(keys)]
        return _without_skipped(match.pick(tuple(places)), charges)

    def _keys(
        self,
        rule: Rule,
        readings: tuple[PathReading, ...] | None,
        proxies: Proxies,
        request: Request,
    ) -> set[str]:
        if readings is None or not rule.reads_path:
            return {self._key(rule, proxies, request)}
        if not readings:
            return {self._key_after_error(rule, Contradiction(), proxies, request)}
        keys = set()
        for reading in filter(rule.url.covers_path, readings):
            request.read_as(reading)
            keys.add(self._key(rule, proxies, request))
        request.read_as(None)
        return keys

    def _key(self, rule: Rule, proxies: Proxies, request: Request) -> str:
        try:
            key = rule.key_of(request)
        except Exception as error:
            return self._key_after_error(rule, error, proxies, request)
        return key or self._key_without_identity(rule, rule.missing, proxies, request)

    def _key_after_error(
        self, rule: Rule, error: Exception, proxies: Proxies, request: Request
    ) -> str:
        """As if it were missing, but never skipped: a client could choose to be."""
        missing = rule.missing
        if isinstance(error, Contradiction):
            missing = "together" if missing == "skip" else missing
        else:
            self._count_error(rule, request, rule.actor, error)
            missing = "ip" if missing == "skip" else missing
        return self._key_without_identity(rule, missing, proxies, request)

    def _key_without_identity(
        self, rule: Rule, missing: str, proxies: Proxies, request: Request
    ) -> str:
        if missing == "ip":
            try:
                address = client_of_request(request, proxies)
                return NO_IDENTITY + (address or "")
            except Exception as error:
                self._count_error(rule, request, rule.actor, error)
                return NO_IDENTITY
        return KEYS_OF_MISSING[missing]

    def _count_error(self, rule: Rule, request: Request, sought: str, error: Exception) -> None:
        """Counted and told in the verdict always, logged once per rule and identity: a client must not be able to fill the log."""
        known, name = request.identity_errors or {}, rule.distinct_name
        if any(one is error and by == name for (by, _), one in known.items()):
            return  # what failed once was looked at twice: by a list and by the rule's actor
        self.errors += 1
        request.identity_errors = {**known, (name, sought): error}
        if (name, sought) not in self._logged:
            self._logged.add((name, sought))
            log.warning("finding the %s of rule %r failed: %r", sought, name, error)


def _is_before(now: int | None, until_us: int) -> bool:
    return (wall_us() if now is None else now) < until_us


def is_refused(charge: Charge) -> bool:
    """No store is asked: the rule denies, whatever was counted."""
    meter, key, _ = charge
    return key is REFUSED_KEY or (meter.denies_all and key is not SKIPPED_KEY)


def _without_skipped(
    match: MatchedRules, charges: list[Charge]
) -> tuple[MatchedRules, list[Charge], Refusal | None]:
    """Rules that skip who has no identity are not asked; one that refuses ends the list."""
    places: list[int] = []
    refusal = None
    for place, charge in enumerate(charges):
        if charge[1] is not SKIPPED_KEY:
            places.append(place)
            if is_refused(charge) and match.rules[place].mode == "enforce":
                refusal = REFUSAL
                break
    if len(places) == len(match.rules):
        return match, charges, refusal
    return match.pick(tuple(places)), [charges[place] for place in places], refusal
