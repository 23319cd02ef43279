"""Header lines that tell a client where it stands.

`RateLimit-Policy` and `RateLimit` are lists of structured fields (RFC 9651), as the IETF's draft on rate limit header fields defines them:

    RateLimit-Policy: "per address";q=100;w=60      a hundred requests in 60 seconds
    RateLimit: "per address";r=50;t=30              50 of them are left, and more will be in 30 seconds
    RateLimit-Policy: "jobs";q=5;qu="concurrent-requests"     five at once
    RateLimit: "jobs";r=2                           two more may come in; when the next place is free, nobody knows

The name of a rule may hold what such a string may not; that is percent-encoded, so that two names stay two.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from diana.core.counter import CounterSpec
from diana.core.decision import NEVER, UNKNOWN, Decision
from diana.core.limit import ConcurrencyLimit
from diana.core.matched_rules import MatchedRules, QuotaHeaders
from diana.core.rule import Rule

SECOND_US = 1_000_000
LARGEST = 10**15 - 1
"""A structured field's integer has at most 15 digits."""

SOON = 0
"""As seconds to retry: as soon as a place is given back."""

MOST_ANNOUNCED = 256
"""Tiers and overrides whose lines a match keeps; those of more are written anew."""
AT_ONCE = (0, 0.0)
"""The pace of a window: nothing comes back before all does."""

_UNSAFE = re.compile(r"[^\x20-\x7E]+")


def policy_name(name: str) -> str:
    """A rule's name in printable ASCII."""
    return _UNSAFE.sub(lambda found: quote(found[0].encode("utf-8", "surrogatepass")), name)


def quoted(name: str) -> str:
    """A structured field's string."""
    return '"' + policy_name(name).replace("\\", "\\\\").replace('"', '\\"') + '"'


def quota_headers(match: MatchedRules, meters: tuple[CounterSpec, ...]) -> QuotaHeaders:
    """What is said of the enforced rules whatever they decide; the match keeps it for the next answer."""
    own = meters == match.meters
    known = match.announcement if own else match.announcements.get(meters)
    if known is not None:
        return known
    enforced = [(match.rules[place], meters[place]) for place in match.enforced]
    policy = ", ".join(policy_item(rule, meter) for rule, meter in enforced)
    template = ", ".join(
        quoted(rule.name).replace("%", "%%")
        # When a place is given back, nobody knows.
        + (";r=%d" if isinstance(meter.limit, ConcurrencyLimit) else ";r=%d;t=%d")
        for rule, meter in enforced
    )
    announcement = QuotaHeaders(
        (b"ratelimit-policy", policy.encode("ascii")),
        template.encode("ascii"),
        tuple(getattr(meter.params, "pace", AT_ONCE) for _, meter in enforced),
        tuple(isinstance(meter.limit, ConcurrencyLimit) for _, meter in enforced)
        if match.holds
        else None,
    )
    if own:
        match.announcement = announcement
    elif len(match.announcements) < MOST_ANNOUNCED:
        match.announcements[meters] = announcement
    return announcement


def policy_item(rule: Rule, meter: CounterSpec) -> str:
    """`"name";q=10;w=1`; with a burst of its own also that. The window is left out if it is no whole number of seconds.

    Places are `"name";q=5;qu="concurrent-requests"`: they have no window.
    """
    limit, burst = meter.limit, meter.params.limit
    if isinstance(limit, ConcurrencyLimit):
        return f'{quoted(rule.name)};q={limit.rpu};qu="concurrent-requests"'
    item = f"{quoted(rule.name)};q={limit.rpu}"
    if limit.unit_us % SECOND_US == 0:
        item += f";w={limit.unit_us // SECOND_US}"
    if burst != limit.rpu:
        item += f";diana-burst={min(burst, LARGEST)}"
    return item


def seconds_up(micros: int) -> int:
    """Whole seconds that are surely enough."""
    return -(-micros // SECOND_US)


def seconds_to_retry(denials: list[Decision]) -> int | None:
    """After how many seconds all of these would let it pass; None if one of them never does, SOON if nobody knows."""
    waits = [decision.outcome[2] for decision in denials]
    if NEVER in waits:
        return None
    return SOON if UNKNOWN in waits else max(1, seconds_up(max(waits, default=1)))
