"""Whatever was charged while the clock was set back by up to a second is refunded, in every store."""

from __future__ import annotations

from typing import Any

import pytest

from diana import Guard, Limiter, Request
from diana.rules.loading import rules_from_bytes
from diana.stores.memory import MemoryStore
from diana.testing import FakeClock
from tests.servers.server import Server
from tests.stores.redis.counting import BEGIN_US, SECOND_US, opened

ALGOS = ["TB", "LB", "W", "SW", "SL"]


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("limits", ["10/minute", "10/second; 10/minute"])
@pytest.mark.parametrize("back_us", [1, 400_000, SECOND_US])
def test_a_limiter_refunds_it(every_store: Any, algo: str, limits: str, back_us: int) -> None:
    clock = FakeClock(BEGIN_US)
    options: dict[str, Any] = {"burst": 9} if algo == "LB" else {}
    limiter = Limiter(limits, algo=algo, store=every_store, name="back", clock=clock, **options)
    assert limiter.take("k", 2)
    clock.set(BEGIN_US - back_us)
    before = limiter.peek("k")
    charged = limiter.take("k", 3)
    assert charged
    limiter.refund(charged)
    assert limiter.peek("k") == before
    assert limiter.take("k", 8)


@pytest.mark.parametrize("algo", ["W", "SW"])
def test_a_charge_to_the_window_before_is_not_refunded_from_the_next(
    every_store: Any, algo: str
) -> None:
    """The clock is set back to where the charge was made, and its window has ended since."""
    clock = FakeClock(BEGIN_US // (60 * SECOND_US) * 60 * SECOND_US - 400_000)
    options: dict[str, Any] = {"slices": 1} if algo == "SW" else {}
    limiter = Limiter(
        "10/minute", algo=algo, store=every_store, name="next", clock=clock, **options
    )
    earlier = limiter.take("k", 3)
    clock.advance(60.5 if algo == "SW" else 0.5)
    assert limiter.take("k", 2)
    clock.advance(60 if algo == "SW" else 0)
    limiter.refund(earlier)
    assert limiter.peek("k").remaining == 10 - 2 - 1


@pytest.mark.parametrize("algo", ALGOS)
def test_what_a_global_rule_denies_leaves_no_charge_on_a_local_one(
    algo: str, redis7: Server
) -> None:
    redis7.ask("FLUSHALL")
    rules = rules_from_bytes(
        b"limits: [{url: /, rules: ["
        b"{name: here, actor: ip, unit: minute, rpu: 9, scope: local, algo: %b%b},"
        b"{name: fleet, actor: all, unit: minute, rpu: 1, scope: global}]}]"
        % (algo.encode(), b", burst: 9" if algo == "LB" else b"")
    )
    clock = FakeClock(BEGIN_US)
    request = Request(peer="203.0.113.7")
    with opened(redis7.url) as store:
        guard = Guard(rules, store, clock=clock, local_store=MemoryStore())
        assert guard.check(request)
        clock.set(BEGIN_US - 1)
        before = guard.peek(request).decisions[0]
        for _ in range(3):
            verdict = guard.check(request)
            assert verdict.denied_by is not None
            assert verdict.denied_by.name == "fleet"
        assert guard.peek(request).decisions[0] == before
