"""One call of each observer for one request, and the numbers that an observer reads of a guard.

A request is checked by more than one guard if a middleware limits the app and `rate_limit` limits the route. A denial by the route is then
the outcome of the whole request: what the middleware charged is refunded. So nothing is reported before the outcome is known, and the
observers get one verdict with the decisions of all rules.

An observer outlives the guards that it observes. It keeps the last numbers of a guard, because a counter never decreases, but not the
guard's stores, with their files and shared memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from weakref import ref

from diana.core.contracts import Observer
from diana.core.decision import Decision
from diana.core.matched_rules import MatchedRules
from diana.core.verdict import Verdict
from diana.engine.refunds import RefundPlanner

log = logging.getLogger("diana")

MOST_JOINED = 256
"""Sets of rules, of middlewares and routes together, that are remembered."""


def call_observers(observers: Sequence[Observer], verdict: Verdict) -> None:
    for observer in observers:
        try:
            observer(verdict.request, verdict)
        except Exception:
            log.exception("an observer failed; the verdict stands")


class RequestReport:
    """Collects the verdicts on one request. After `send`, observers are called at once: the response has begun."""

    __slots__ = ("_parts", "is_sent")

    def __init__(self) -> None:
        self._parts: list[tuple[Sequence[Observer], Verdict]] = []
        self.is_sent = False

    def add(self, observers: Sequence[Observer], verdict: Verdict) -> None:
        if not observers:
            return
        if self.is_sent:
            call_observers(observers, verdict)
        else:
            self._parts.append((observers, verdict))

    def replace(self, former: Verdict, verdict: Verdict) -> None:
        """The request was allowed and is denied after all, since it cannot wait."""
        self._parts = [
            (observers, verdict if one is former else one) for observers, one in self._parts
        ]

    def send(self) -> None:
        parts, self._parts, self.is_sent = self._parts, [], True
        if not parts:
            return
        concerned: list[Observer] = []
        for observers, _ in parts:
            concerned += [observer for observer in observers if observer not in concerned]
        call_observers(concerned, joined_verdict([verdict for _, verdict in parts]))


def joined_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of all rules. If one part is denied, the others are refunded, and their decisions say what remains since then."""
    asked = [verdict for verdict in verdicts if verdict.rules or verdict.shed] or verdicts[:1]
    first, last = asked[0], asked[-1]
    if first is last:
        return first
    denied = next((verdict for verdict in asked if not verdict.allowed), None)
    decisions = [decision for verdict in asked for decision in verdict.decisions]
    if denied is not None:
        decisions = [_refunded(decision) if decision else decision for decision in decisions]
    request = first.request
    for verdict in asked[1:]:
        if verdict.request.identity_errors:
            request.identity_errors = {
                **(request.identity_errors or {}),
                **verdict.request.identity_errors,
            }
        if verdict.request.shadow_listed:
            request.shadow_listed = {
                **(request.shadow_listed or {}),
                **verdict.request.shadow_listed,
            }
        if verdict.function_errors:
            request.function_errors = {**first.function_errors, **verdict.function_errors}
    return Verdict(
        denied is None,
        0.0 if denied is not None else max(verdict.delay for verdict in asked),
        None if denied is None else denied.denied_by,
        _joined_match(tuple(verdict.match for verdict in asked)),
        tuple(decisions),
        first.version,
        request,
        tuple(meter for one in asked for meter in one.meters or one.match.meters),
        None if denied is None else denied.shed,
        None if denied is None else denied.listed,
    )


def _refunded(decision: Decision) -> Decision:
    _, remaining, _, reset_us, _ = decision.outcome
    remaining = min(remaining + decision.cost, max(decision.limit, remaining))
    return decision._replace(outcome=(True, remaining, 0, reset_us, 0))


@lru_cache(MOST_JOINED)
def _joined_match(matches: tuple[MatchedRules, ...]) -> MatchedRules:
    return MatchedRules(tuple(rule for match in matches for rule in match.rules))


class StoreCounts:
    def __init__(self, store: Any, refunds: RefundPlanner) -> None:
        self._store = _weakly(store)
        self._refunds = ref(refunds)
        self._last: dict[str, int] = {"expired_slots": 0}

    def __call__(self) -> Mapping[str, int]:
        """By name, as far as the guard and its store still exist; else as they were when this was last called."""
        store, refunds = self._store(), self._refunds()
        if store is not None and hasattr(store, "counts"):
            self._last.update(store.counts())
        if refunds is not None:
            self._last["expired_slots"] = sum(account.expired for account in refunds.accounts)
        return self._last


def _weakly(store: Any) -> Callable[[], Any]:
    try:
        return ref(store)
    except TypeError:  # a store with __slots__
        return lambda: store
