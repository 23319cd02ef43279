"""A client reads in `RateLimit` when more of its quota is available: to the second, whatever the algorithm and the store."""

from __future__ import annotations

from typing import Any

import pytest

from diana import Guard, Request
from diana.core.charge import Charge
from diana.responses.denial_response import ResponseBuilder
from diana.rules.loading import rules_from_bytes
from diana.stores.memory import MemoryStore
from diana.testing import FakeClock
from tests.stores.redis.counting import BEGIN_US, SECOND_US, meter

MINUTE_US = 60 * SECOND_US
CHARGES = [(0, 1), (9_000_000, 2), (400_001, 1), (14_000_000, 3), (25_000_000, 1), (31_000_000, 2)]
"""How long after the one before, and how much."""


@pytest.mark.parametrize("algo", ["SL", "SW"])
@pytest.mark.parametrize("rpu", [10, 4])
def test_more_would_pass_then_and_not_before(every_store: Any, algo: str, rpu: int) -> None:
    """Also where an edit has lowered the limit below what was counted."""
    some, lower = (meter("more", algo, limit, MINUTE_US) for limit in (10, rpu))
    now = BEGIN_US
    for gap, cost in CHARGES:
        now += gap
        (decision,) = every_store.decide([Charge(some, "k", cost)], now)
        assert decision
        for limit, of in (
            (some, decision),
            (lower, every_store.decide([Charge(lower, "k", 0)], now)[0]),
        ):
            assert of.more_after is not None
            due = now + of.outcome[2]
            early, late = (
                every_store.peek([Charge(limit, "k", 0)], at)[0].remaining for at in (due - 1, due)
            )
            assert early == of.remaining < late
    (unused,) = every_store.decide([Charge(some, "unused", 0)], now)
    assert unused.more_after is None


@pytest.mark.parametrize(
    ("algo", "seconds"),
    [
        ("SL", [60, 46, 43, 1]),
        ("SW", [64, 50, 47, 5]),
        ("TB", [6, 6, 3, 6]),
        ("W", [40, 26, 23, 41]),
    ],
)
def test_the_header_of_an_allowed_response_says_when(algo: str, seconds: list[int]) -> None:
    rules = rules_from_bytes(
        b"limits: [{url: /, rules: [{name: r, actor: ip, unit: minute, rpu: 10, algo: %b}]}]"
        % algo.encode()
    )
    clock = FakeClock(BEGIN_US)
    guard = Guard(rules, MemoryStore(), clock=clock)
    answers, told = ResponseBuilder(rules), []
    for gap in (0, 14, 3, 42):
        clock.advance(gap)
        fields = dict(answers.fields(guard.check(Request(peer="203.0.113.7"))))
        told.append(int(fields[b"ratelimit"].rpartition(b"t=")[2]))
    assert told == seconds
