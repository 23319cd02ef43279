"""What a client is told: header lines if it may pass, a whole answer if not.

Pure: no I/O, no clock. Everything that depends on the rules alone is computed once per policy. What is composed for one denial is
remembered for the next: in a flood of denied requests most of them get the same words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from html import escape
from http import HTTPStatus
from math import inf
from typing import NamedTuple

from diana.core.counter import CounterSpec
from diana.core.decision import NEVER, UNKNOWN, Decision
from diana.core.limit import ConcurrencyLimit
from diana.core.matched_rules import MatchedRules
from diana.core.policy import Policy
from diana.core.rule import Body, Rule
from diana.core.shed_settings import Shed
from diana.core.verdict import Verdict
from diana.responses.preferred_kind import HTML, JSON, TEXT, preferred_kind
from diana.responses.ratelimit_headers import (
    LARGEST,
    SOON,
    policy_name,
    quota_headers,
    quoted,
    seconds_to_retry,
    seconds_up,
)

Fields = list[tuple[bytes, bytes]]
"""Header lines as ASGI has them: names in small letters."""

MOST_COMPOSED = 4_096
"""Bodies that are remembered."""
PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"
EXCEEDED, REDUCED, OVERLOADED, LISTED = "exceeded", "reduced", "overloaded", "listed"
TYPES = {
    EXCEEDED: PROBLEM_TYPES + "quota-exceeded",
    REDUCED: PROBLEM_TYPES + "temporary-reduced-capacity",
    OVERLOADED: PROBLEM_TYPES + "temporary-reduced-capacity",
}
"""While the store is lost, a node counts by itself, and under load it rejects some: the IETF's draft has a name for that."""
HALF_US = 0.5
"""Off before rounding up: a third of a second, three times, is one second and not two."""
KINDS = (JSON, TEXT, HTML)
UNITS = (("second", 1, 120), ("minute", 60, 7_200), ("hour", 3_600, 172_800), ("day", 86_400, inf))
"""In which a wait is told: its seconds, and from how many seconds on the next one is used."""
WITHOUT_BODY = (204, 205, 304)

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<h1>{title}</h1>
<p>{detail}</p>
</html>
"""


class DenialResponse(NamedTuple):
    """A whole answer. The body is there for HEAD too; the sender leaves it out."""

    status: int
    headers: Fields
    body: bytes


class ResponseBuilder:
    """The answers of one policy: `fields(verdict)` for an allowed request, `denial(verdict)` for a denied one."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._answer = policy.settings.answer
        self._ietf = "ietf" in self._answer.headers
        self._legacy = "legacy" in self._answer.headers
        self._retry_after = "retry-after" in self._answer.headers
        self._compose = lru_cache(MOST_COMPOSED)(_compose)

    def of(self, policy: Policy) -> ResponseBuilder:
        """These, or those of another policy: rules may be exchanged at any time."""
        return self if policy is self._policy else ResponseBuilder(policy)

    def fields(self, verdict: Verdict) -> Fields:
        """Header lines of an allowed answer. Rules in the shadow are not in them."""
        match, decisions = verdict.match, verdict.decisions
        meters = verdict.meters or match.meters
        if match.repeats:
            match, decisions, meters = _once_per_rule(match, decisions, meters)
        announcement = match.announcement
        if announcement is None or meters is not match.meters:
            announcement = quota_headers(match, meters)
        if match.shadows:
            decisions = tuple(decisions[place] for place in match.enforced)
        if not decisions:
            return []
        fields: Fields = []
        if self._ietf:
            numbers: list[float] = []
            for decision, (full_us, one_us) in zip(decisions, announcement.paces):  # noqa: B905  # it costs as much as the sum
                outcome = decision.outcome
                _, remaining, told_us, reset_us, _ = outcome
                more_us: float = told_us
                if not told_us:
                    # Until there is more than what remains. A share of a limit, while the store is lost, has another pace.
                    more_us = reset_us - full_us + (remaining + 1) * one_us
                    if more_us > reset_us or more_us <= 0:
                        more_us = reset_us
                numbers += (
                    remaining if remaining < LARGEST else LARGEST,
                    -((HALF_US - more_us) // 1_000_000),
                )
            if announcement.places is not None:
                numbers = list(_without_times(numbers, announcement.places))
            line = (b"ratelimit", announcement.template % tuple(numbers))
            fields += announcement.policy, line
        if self._legacy:
            tightest = min(decisions, key=_remaining)
            places = announcement.places
            fields += _legacy(tightest, bool(places and places[decisions.index(tightest)]))
        return fields

    def denial(self, verdict: Verdict) -> DenialResponse:
        """Status, header lines and body for a denied request."""
        if verdict.shed is not None:
            return self._shed(verdict, verdict.shed)
        if verdict.listed is not None:
            return self._listed(verdict)
        match, decisions = verdict.match, verdict.decisions
        meters = verdict.meters or match.meters
        if match.repeats:
            match, decisions, meters = _once_per_rule(match, decisions, meters)
        asked = [(match.rules[place], decisions[place]) for place in match.enforced]
        denying = [(rule, decision) for rule, decision in asked if not decision]
        retry = seconds_to_retry([decision for _, decision in denying])
        first = verdict.denied_by
        status = verdict.status or self._answer.status
        body = self._body(first)
        names = tuple(rule.name for rule, _ in denying)
        problem = REDUCED if denying and denying[0][1].degraded else EXCEEDED
        headers, content = self._headers_and_body(verdict, status, body, problem, names, retry)
        if self._ietf and asked:
            headers.append(quota_headers(match, meters).policy)
            limits = ", ".join(_exhausted(rule, decision) for rule, decision in denying)
            headers.append((b"ratelimit", limits.encode("ascii")))
        if self._legacy and denying:
            rule, longest = max(denying, key=lambda one: _wait_us(one[1]))
            headers += _legacy(longest, isinstance(rule.meter.limit, ConcurrencyLimit))
        return DenialResponse(status, headers, content)

    def _shed(self, verdict: Verdict, shed: Shed) -> DenialResponse:
        """No quota was asked, so none is told."""
        status = self._answer.status
        headers, content = self._headers_and_body(
            verdict, status, self._answer.body, OVERLOADED, (), shed.retry_after
        )
        return DenialResponse(status, headers, content)

    def _listed(self, verdict: Verdict) -> DenialResponse:
        """A client on a `deny` list: no quota was asked, and no time is told."""
        status = verdict.status or self._answer.status
        body = self._body(verdict.denied_by)
        return DenialResponse(
            status, *self._headers_and_body(verdict, status, body, LISTED, (), None)
        )

    def _headers_and_body(
        self,
        verdict: Verdict,
        status: int,
        body: Body,
        problem: str,
        names: tuple[str, ...],
        retry: int | None,
    ) -> tuple[Fields, bytes]:
        kinds = tuple(kind for kind in KINDS if getattr(body, kind) is not None) or KINDS
        kind = preferred_kind(_accepted(verdict), kinds)
        if getattr(body, kind) is not None:
            # Somebody's own words are the same for all; written down once for each wait, they would fill the memory.
            described, content = self._compose(status, body, kind, problem, (), None)
        else:
            described, content = self._compose(status, body, kind, problem, names, retry)
        headers = [(b"cache-control", b"no-store"), *described]
        if self._retry_after and retry:
            headers.append((b"retry-after", str(retry).encode()))
        return headers, content

    def has_words_for(self, verdict: Verdict) -> bool:
        """Whether the rules file has a body of its own for this denial."""
        return any(kind is not None for kind in self._body(verdict.denied_by))

    def _body(self, first: Rule | None) -> Body:
        return self._answer.body if first is None or first.body is None else first.body


def _once_per_rule(
    match: MatchedRules, decisions: tuple[Decision, ...], meters: tuple[CounterSpec, ...]
) -> tuple[MatchedRules, tuple[Decision, ...], tuple[CounterSpec, ...]]:
    """A rule that counts by the path may be asked once per reading of it: its tightest decision is told."""
    tightest: dict[int, int] = {}
    for place, rule in enumerate(match.rules):
        first = tightest.setdefault(id(rule), place)
        tightest[id(rule)] = max(first, place, key=lambda one: _tightness(decisions[one]))
    places = tuple(tightest.values())
    once = match.pick(places)
    if meters is match.meters:
        return once, tuple(decisions[place] for place in places), once.meters
    told = tuple(meters[place] for place in places)
    return once, tuple(decisions[place] for place in places), told


def _tightness(decision: Decision) -> tuple[float, int]:
    return (0.0 if decision else _wait_us(decision), -_remaining(decision))


def _exhausted(rule: Rule, decision: Decision) -> str:
    """How long no more than the rest passes: as `Retry-After` says, and nothing longer beside it."""
    item = f"{quoted(rule.name)};r={min(decision.outcome[1], LARGEST)}"
    retry = seconds_to_retry([decision])
    return f"{item};t={retry}" if retry else item


def _remaining(decision: Decision) -> int:
    return decision.outcome[1]


def _wait_us(decision: Decision) -> float:
    return inf if decision.outcome[2] < 0 else decision.outcome[2]


def _legacy(decision: Decision, is_place: bool) -> Fields:
    """One rule's numbers; `Reset` is in seconds from now, until the counter is as if it had never been used.

    There is none for slots, whose release is not known, and for a request that never passes: `0` would mean that it may come again now.
    """
    _, remaining, retry_us, reset_us, _ = decision.outcome
    fields = [
        (b"x-ratelimit-limit", str(decision.limit).encode()),
        (b"x-ratelimit-remaining", str(remaining).encode()),
    ]
    if not is_place and retry_us != NEVER:
        fields.append((b"x-ratelimit-reset", str(seconds_up(reset_us)).encode()))
    return fields


def _without_times(numbers: list[float], places: tuple[bool, ...]) -> Iterator[float]:
    """What remains and the seconds of each rule, but no seconds where there are places."""
    for number, is_place in enumerate(places):
        yield numbers[2 * number]
        if not is_place:
            yield numbers[2 * number + 1]


def _accepted(verdict: Verdict) -> list[str]:
    return verdict.request.header_lines("accept")


def _compose(
    status: int, body: Body, kind: str, problem: str, names: tuple[str, ...], retry: int | None
) -> tuple[Fields, bytes]:
    """The body, and the header lines that describe it."""
    if status in WITHOUT_BODY:
        return [], b""
    own: str | None = getattr(body, kind)
    if kind == JSON:
        media = b"application/problem+json" if own is None else b"application/json"
        text = _problem(status, problem, names, retry) if own is None else own
    elif kind == TEXT:
        media = b"text/plain; charset=utf-8"
        text = f"{_detail(problem, retry)}\n" if own is None else own
    else:
        media = b"text/html; charset=utf-8"
        title, detail = _title(problem, status, retry), _detail(problem, retry)
        page = _PAGE.format(title=escape(title), detail=escape(detail))
        text = page if own is None else own
    content = text.encode("utf-8", "replace")
    return [(b"content-type", media), (b"content-length", str(len(content)).encode())], content


def _problem(status: int, kind: str, names: tuple[str, ...], retry: int | None) -> str:
    """RFC 9457. Nothing in it says who was counted: not the key, not the address."""
    problem: dict[str, object] = {
        "type": "about:blank" if retry is None else TYPES[kind],
        "title": _title(kind, status, retry),
        "status": status,
        "detail": _detail(kind, retry),
    }
    if retry:
        problem["retry_after"] = retry
    if kind in (OVERLOADED, LISTED):
        return json.dumps(problem)
    problem["violated-policies"] = [policy_name(name) for name in names]
    return json.dumps(problem)


def _title(kind: str, status: int, retry: int | None) -> str:
    """What the type of the problem is about, and what the detail says; of `about:blank` it is the status in words."""
    if retry is None and status >= 400:
        with suppress(ValueError):
            return HTTPStatus(status).phrase
    return "Service Overloaded" if kind == OVERLOADED else "Too Many Requests"


def _detail(kind: str, retry: int | None) -> str:
    if kind == LISTED:
        return "Requests of this client are denied."
    if kind == OVERLOADED and retry is not None:
        return f"The service is overloaded and rejects some requests. No quota was used. {_try_again(retry)}"
    return detail_of(retry)


def detail_of(retry: int | None) -> str:
    """In words, whatever the shape of the answer."""
    if retry is None:
        return "This request cannot be let through."
    if retry == SOON:
        return "Too many requests at once. Please try again when one of them has been answered."
    return f"Too many requests. {_try_again(retry)}"


def _try_again(retry: int) -> str:
    return f"Please try again in {_in_words(retry)}."


def _in_words(seconds: int) -> str:
    """Rounded up to a unit that people count in: `90 seconds`, `60 minutes`, `3 days`."""
    unit, size, _ = next(unit for unit in UNITS if seconds < unit[2])
    number = -(-seconds // size)
    return f"{number} {unit}{'' if number == 1 else 's'}"


def seconds_without_header(verdict: Verdict) -> int | None:
    """For `detail_of`, where no header says when to come back: SOON if that is as soon as a place is free."""
    denial = verdict.denial
    return SOON if denial is not None and denial.outcome[2] == UNKNOWN else None
