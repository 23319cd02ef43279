"""For how long a counter lives: as long as the slowest limit that counts on it needs, by the server's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from diana import AsyncGuard, Guard, Limiter, Request
from diana.core.charge import Charge, charged_at
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.limit_adjustments import Override, meter_with
from diana.rules.loading import rules_from_bytes
from diana.stores.redis.store import RedisStore
from diana.testing import FakeClock
from tests.servers.server import Server
from tests.stores.redis.counting import BEGIN_US, SECOND_US, meter, opened

HOUR_US = 3_600 * SECOND_US
TIERS = """
identity: {tier: header X-Plan, trust_tier: true}
limits:
  - url: /
    rules:
      - {name: plan, actor: all, scope: SCOPE, unit: hour, algo: ALGO, rpu: {free: 1, pro: 10000, else: 1}OPTIONS}
"""


@pytest.fixture(scope="module")
def store(any_server: Server) -> Iterator[RedisStore]:
    with opened(any_server.url) as store:
        yield store


@pytest.fixture(autouse=True)
def empty(any_server: Server) -> None:
    any_server.ask("FLUSHALL")


LOOK = "return {redis.call('TIME'), redis.call('PTTL', KEYS[1])}"


def ends_us(server: Server) -> int:
    """When the only counter ends, by the server's clock."""
    others = (b":limit:", b":rule:", b":lease:", b":held:")
    keys = {key for key in server.client().scan_iter() if b"|" in key}  # a scan may repeat a key
    (key,) = (key for key in keys if not any(word in key for word in others))
    (seconds, micros), life_ms = server.ask("EVAL", LOOK, 1, key)
    return int(seconds) * SECOND_US + int(micros) + int(life_ms) * 1_000


def is_kept_for(decision: Decision, server: Server) -> bool:
    """As long as this decision says, and a second; not for ever."""
    until_us = decision.at + decision.outcome[3]
    # A server may stand still between its look at the clock and the expiry that it sets.
    return until_us + 500_000 <= ends_us(server) <= until_us + 1_500_000


def request_of(plan: str) -> Request:
    return Request("GET", "/", {"X-Plan": plan})


def tiers(algo: str = "TB", scope: str = "global", options: str = "") -> Any:
    text = TIERS.replace("SCOPE", scope).replace("ALGO", algo).replace("OPTIONS", options)
    return rules_from_bytes(text.encode())


@pytest.mark.parametrize(
    ("algo", "scope", "options"),
    [
        ("TB", "global", ""),
        ("TB", "leased", ""),
        ("LB", "global", ", burst: {free: 0, pro: 5000, else: 0}"),
    ],
)
def test_a_faster_tier_keeps_what_a_slower_one_counts_on(
    algo: str, scope: str, options: str, store: RedisStore, any_server: Server
) -> None:
    guard = Guard(tiers(algo, scope, options), store)
    assert guard.check(request_of("free"))
    for _ in range(3):
        assert guard.check(request_of("pro"))
        assert not guard.check(request_of("free"))
        (decision,) = guard.peek(request_of("free")).decisions
        assert decision.reset_after > 3_600
        assert is_kept_for(decision, any_server)


def test_a_slower_tier_that_never_asked_is_thought_of(
    store: RedisStore, any_server: Server
) -> None:
    """What the fastest has charged is denied to the slowest until it has leaked out at the slowest rate."""

    async def check() -> Decision:
        guard = AsyncGuard(tiers(), store)
        assert await guard.check(request_of("pro"))
        return (await guard.peek(request_of("free"))).decisions[0]

    assert is_kept_for(asyncio.run(check()), any_server)


@pytest.mark.parametrize("code", ["W", "SW", "SL"])
def test_windows_live_for_their_unit_whatever_the_tier(
    code: str, store: RedisStore, any_server: Server
) -> None:
    guard = Guard(tiers(code), store)
    assert is_kept_for(guard.check(request_of("pro")).decisions[0], any_server)


def test_an_override_that_comes_and_goes_keeps_what_was_counted(
    store: RedisStore, any_server: Server
) -> None:
    rules = "{url: /, rules: [{name: calls, actor: device, scope: global, unit: hour, rpu: 2}]}"
    guard = Guard(rules_from_bytes(rules.encode()), store)
    request = Request("GET", "/", {"X-Device-Id": "a1"})
    assert guard.check(request)
    assert guard.check(request)
    guard.override("calls", "a1", rpu=10_000)
    assert guard.check(request)
    guard.remove_override("calls", "a1")
    verdict = guard.check(request)
    assert not verdict
    (decision,) = verdict.decisions
    assert ends_us(any_server) > decision.at + decision.outcome[3]


def test_a_slower_override_that_came_later_is_thought_of(
    store: RedisStore, any_server: Server
) -> None:
    """What goes over the wire was worked out before the family had a slower limit."""
    some = meter("later", rpu=1_000, unit_us=HOUR_US)
    (decision,) = store.decide([Charge(some, "k")])
    assert is_kept_for(decision, any_server)
    slower = meter_with(some, Override(1))
    assert store.decide([Charge(some, "k")])[0]
    (decision,) = store.peek([Charge(slower, "k")])
    assert decision.reset_after > 3_590
    assert ends_us(any_server) > decision.at + decision.outcome[3]


class TestTwoVersionsOfRules:
    """Side by side on one server, and neither knows of the other."""

    @pytest.fixture(params=["TB", "LB"])
    def versions(self, request: pytest.FixtureRequest) -> tuple[CounterSpec, CounterSpec]:
        code = request.param
        options = {"burst": 5} if code == "LB" else {}
        fast = meter("edited", code, 10_000, HOUR_US, **options)
        return meter("edited", code, 1, HOUR_US), fast

    def test_the_faster_one_does_not_shorten_it(
        self, versions: tuple[CounterSpec, CounterSpec], store: RedisStore, any_server: Server
    ) -> None:
        slow, fast = versions
        (charged,) = store.decide([Charge(slow, "k")])
        assert charged
        for _ in range(4):
            assert store.decide([Charge(fast, "k")])[0]
            assert is_kept_for(charged, any_server)
        store.refund([Charge(fast, "k")], charged.at)
        assert is_kept_for(charged, any_server)

    def test_what_the_slower_one_was_told_holds(
        self, versions: tuple[CounterSpec, CounterSpec], store: RedisStore, any_server: Server
    ) -> None:
        slow, fast = versions
        (charged,) = store.decide([Charge(fast, "k")])
        assert is_kept_for(charged, any_server)
        (denial,) = store.decide([Charge(slow, "k")])
        assert not denial
        assert is_kept_for(denial, any_server)

    def test_a_look_writes_nothing(
        self, versions: tuple[CounterSpec, CounterSpec], store: RedisStore, any_server: Server
    ) -> None:
        slow, fast = versions
        (charged,) = store.decide([Charge(fast, "k")])
        assert not store.peek([Charge(slow, "k")])[0]
        assert is_kept_for(charged, any_server)


@pytest.mark.parametrize("code", ["TB", "LB", "W", "SW", "SL", "C"])
def test_of_what_was_given_back_whole_no_key_is_left(
    code: str, store: RedisStore, any_server: Server
) -> None:
    some = meter("whole", code, 5, HOUR_US)
    (charged,) = store.decide([Charge(some, "k")])
    store.refund([Charge(some, "k")], charged_at(some, charged), charged.at)
    assert not [key for key in any_server.client().scan_iter() if key.endswith(b"|k")]


def test_a_shorter_hold_does_not_shorten_it(store: RedisStore, any_server: Server) -> None:
    long, short = (meter("held", "C", 5, unit_us) for unit_us in (HOUR_US, 10 * SECOND_US))
    (held,) = store.decide([Charge(long, "k")])
    (taken,) = store.decide([Charge(short, "k")])
    assert is_kept_for(held, any_server)
    store.refund([Charge(short, "k")], charged_at(short, taken))
    assert is_kept_for(held, any_server)


def test_leased_permits_of_two_versions(store: RedisStore, any_server: Server) -> None:
    slow, fast = (meter("leased", rpu=rpu, unit_us=HOUR_US) for rpu in (1, 10_000))
    leased = store.leased
    (charged,) = leased.decide([Charge(slow, "k")])
    assert leased.decide([Charge(fast, "k")])[0]
    assert is_kept_for(charged, any_server)


def test_what_a_slower_version_was_told_of_leased_permits_holds(
    store: RedisStore, any_server: Server
) -> None:
    slow, fast = (meter("leased", rpu=rpu, unit_us=HOUR_US) for rpu in (1, 10_000))
    leased = store.leased
    (charged,) = leased.decide([Charge(fast, "k")])
    assert is_kept_for(charged, any_server)
    (denial,) = leased.decide([Charge(slow, "k")])
    assert not denial
    assert is_kept_for(denial, any_server)


def test_both_speak_of_a_limiter(store: RedisStore, any_server: Server) -> None:
    """The same by the doors that users take."""
    slow = Limiter("1/hour", store=store, name="calls")
    fast = Limiter("1000/hour", store=store, name="calls")
    assert slow.take("alice")
    assert fast.take("alice")
    denial = slow.take("alice")
    assert not denial
    assert is_kept_for(denial, any_server)


def test_a_refund_after_the_window_is_over_does_not_shorten_the_life_of_the_counter(
    store: RedisStore,
) -> None:
    """There is nothing to refund. The grace is for clocks that are set back a little."""
    clock = FakeClock(BEGIN_US)
    limiter = Limiter("2/second", algo="W", store=store, name="calls", clock=clock)
    charged = limiter.take("alice", 2)
    assert charged
    clock.advance(1)
    limiter.refund(charged)
    clock.advance(-0.1)
    assert not limiter.take("alice")
