"""Denials of counters without a lease, remembered for a moment: each spares a trip."""

from __future__ import annotations

from typing import NamedTuple

from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.runtime.clock import wall_us
from diana.stores.redis.leases.lease import EMPTY_US
from diana.stores.redis.leases.lease_request import LeaseGrant

MOST_WATCHED = 20_000
"""Counters without a lease of which something is remembered for a moment."""


class RecentDenial(NamedTuple):
    """Of a counter without a lease."""

    meter: CounterSpec
    """Another tier, or an override, may have room."""
    cost: int
    until_us: int
    retry_at_us: int
    outcome: tuple[bool, int, int, int, int]


class RecentDenials:
    """By key as it travels; the lock is the table's."""

    def __init__(self) -> None:
        self._denials: dict[bytes, RecentDenial] = {}

    def remember(
        self, meter: CounterSpec, wire_key: bytes, cost: int, grant: LeaseGrant, sent_us: int
    ) -> None:
        """For at most 100 ms."""
        outcome = (False, grant.remaining, grant.retry_us, grant.reset_us, 0)
        until_us = sent_us + EMPTY_US
        if 0 < grant.retry_us < EMPTY_US:
            until_us = sent_us + grant.retry_us
        if len(self._denials) >= MOST_WATCHED:
            self._denials.clear()
        retry_at_us = sent_us + grant.retry_us
        self._denials[wire_key] = RecentDenial(meter, cost, until_us, retry_at_us, outcome)

    def known(
        self, meter: CounterSpec, key: str, wire_key: bytes, cost: int, now: int
    ) -> Decision | None:
        known = self._denials.get(wire_key)
        if known is None or known.meter is not meter:
            return None
        if now >= known.until_us or cost != known.cost:
            del self._denials[wire_key]
            return None
        _, remaining, retry_us, reset_us, _ = known.outcome
        if retry_us > 0:
            retry_us = max(1, known.retry_at_us - now)
        outcome = (False, remaining, retry_us, reset_us, 0)
        return Decision(outcome, meter.params.limit, key, cost, wall_us())

    def forget(self, wire_key: bytes) -> None:
        self._denials.pop(wire_key, None)
