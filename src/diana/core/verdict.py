"""What all rules together say to one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from diana.core.counter import CounterSpec
from diana.core.decision import NEVER, UNKNOWN, Decision
from diana.core.matched_rules import MatchedRules
from diana.core.request import Request, printable
from diana.core.rule import Rule
from diana.core.shed_settings import Shed

FORBIDDEN = 403
"""The status for clients on a `deny` list."""


class Verdict(NamedTuple):
    """True or false by itself. `rules` and `decisions` stand side by side, in the order in which they were asked."""

    allowed: bool
    delay: float
    """Seconds to hold the request: the longest of its rules'."""
    denied_by: Rule | None
    """The first rule that denies."""
    match: MatchedRules
    """The rules that were asked."""
    decisions: tuple[Decision, ...]
    version: str
    """Of the rules that decided."""
    request: Request
    meters: tuple[CounterSpec, ...] = ()
    """Beside the rules: under which numbers each was asked. A tier's or an override's are not the rule's own."""
    shed: Shed | None = None
    """Rejected because of load, before any rule was asked: by which factor, at which level. Then `denied_by` is None."""
    listed: str | None = None
    """What of the `deny` list of `denied_by` the request is, such as `ip 203.0.113.0/24`. None: no list denies it."""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def status(self) -> int | None:
        """Of the response to a denied request: 403 for a client on a `deny` list, or the rule's own. None: as `response.status` says."""
        if self.listed is not None:
            return FORBIDDEN
        return None if self.denied_by is None else self.denied_by.status

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.match.rules

    @property
    def identity_errors(self) -> Mapping[str, Exception]:
        """By rule, why finding its identity failed, or what its lists or tiers look at: the request is counted as one without, by
        address unless `missing` says else."""
        found: dict[str, Exception] = {}
        for (name, _), error in (self.request.identity_errors or {}).items():
            found.setdefault(name, error)
        return found

    @property
    def function_errors(self) -> Mapping[tuple[str, str], Exception]:
        """By rule and function (`cost`, `limit`, `allow`), what code raised: the request was decided as if the function were not there."""
        return self.request.function_errors or {}

    @property
    def denial(self) -> Decision | None:
        """The decision of the rule that denies."""
        if self.denied_by is None:
            return None
        asked = zip(self.rules, self.decisions, strict=True)
        return next(said for rule, said in asked if rule is self.denied_by and not said)

    def listed_by(self, rule: Rule, decision: Decision) -> str | None:
        """What of the `deny` list of one of `rules` the request is. A rule in the shadow would deny it, and only reports."""
        if decision or not rule.deny:
            return None
        if rule.mode == "enforce":
            return self.listed if rule is self.denied_by else None
        return (self.request.shadow_listed or {}).get(rule.distinct_name)

    def explain(self) -> str:
        """Which rules were asked, in which order, by which keys, and what they said."""
        request = self.request
        lines = [
            f"{printable(request.method)} {printable(request.path)} from {printable(request.peer or 'nowhere')}"
        ]
        for place, (rule, decision) in enumerate(zip(self.rules, self.decisions, strict=True)):
            said = _said(rule, decision)
            listed = self.listed_by(rule, decision)
            if listed is not None:
                said = f"✗ denied: its deny list has the request's {listed}{_shadow(rule)}"
            lines += ["│", f"├─ {rule}", f"│    {said}"]
            if self.meters and self.meters[place] is not rule.meter:
                lines.append(f"│    under {self.meters[place].limit}")
            for (name, sought), error in (request.identity_errors or {}).items():
                if name == rule.distinct_name:
                    lines.append(f"│    finding its {sought} failed: {printable(repr(error))}")
        for (name, function), raised in self.function_errors.items():
            lines += ["│", f"│  {function}= of {name} failed: {printable(repr(raised))}"]
        if not self.rules:
            lines += ["│", "│  no rule is asked"]
        lines += ["│", f"╰─▶ {self._outcome()}"]
        return "\n".join(lines)

    def _outcome(self) -> str:
        if self.shed is not None:
            return f"{self.shed}; charged to none"
        if self.denied_by is not None:
            return f"denied by {self.denied_by.name}; charged to none"
        return f"allowed after {self.delay:g} s" if self.delay else "allowed"


def _said(rule: Rule, decision: Decision) -> str:
    allowed, remaining, retry_us, _, delay_us = decision.outcome
    if allowed:
        said = f"✓ {remaining} of {decision.limit} left"
        if delay_us:
            said += f", waits {delay_us / 1_000_000:g} s"
    elif retry_us == NEVER:
        said = "✗ denied"
    elif retry_us == UNKNOWN:
        said = "✗ denied: all places are taken"
    else:
        said = f"✗ denied, retry after {retry_us / 1_000_000:g} s"
    degraded = " (degraded: the store is out of reach)" if decision.degraded else ""
    return f"key {decision.key!r}: {said}{_shadow(rule)}{degraded}"


def _shadow(rule: Rule) -> str:
    return "" if rule.mode == "enforce" else " (shadow: only reported)"
