"""`drop: random`: of far more than can pass, chance decides who asks, and nearness is no advantage."""

from __future__ import annotations

import asyncio
from collections import Counter
from math import exp
from random import Random
from typing import Any

import pytest

from diana import AsyncGuard, ConfigError, Guard, Request, Verdict
from diana.core.drive import drive
from diana.core.limit import Limit
from diana.core.policy import Policy
from diana.rules.loading import rules_from_bytes
from diana.stores.arrival_rates import Arrivals, TopCounts, chance_to_ask
from diana.stores.redis.maintenance.heartbeat import exchange_arrivals
from diana.stores.redis.protocol.commands import Command, Exchange
from diana.stores.redis.protocol.scripts import scripts
from diana.stores.redis.store import RedisStore
from diana.testing import FakeClock
from tests.servers.server import Server
from tests.servers.waiting import until

BEGIN_US = 1_700_000_000_000_000
LIMIT = 100
CLIENTS = 20


def policy(rpu: int = LIMIT, scope: str = "global", more: str = "") -> Policy:
    rule = f"{{name: product, actor: path, unit: second, rpu: {rpu}, algo: W, scope: {scope}, drop: random{more}}}"
    return rules_from_bytes(f"store_budget: 10s\nlimits: [{{url: /p, rules: [{rule}]}}]".encode())


def test_up_to_twice_the_limit_all_ask_and_beyond_about_twice_the_limit() -> None:
    limit = Limit(100, 1_000_000)
    assert [chance_to_ask(limit, rate) for rate in (0, 50, 200)] == [1.0, 1.0, 1.0]
    for rate in (201, 1_000, 50_000):
        assert chance_to_ask(limit, rate) * rate == pytest.approx(200)
    assert chance_to_ask(Limit(60, 60_000_000), 10) == pytest.approx(0.2)


def test_frequent_keys_are_found_among_any_number_of_others() -> None:
    chance = Random(1)
    counts = TopCounts(50)
    arrivals = ["hot"] * 1_000 + ["warm"] * 400 + [f"cold {number}" for number in range(10_000)]
    chance.shuffle(arrivals)
    for key in arrivals:
        counts.add(key)
    assert len(counts.counts) <= 50
    (first, most), (second, some) = counts.top(2)
    assert (first, second) == ("hot", "warm")
    assert 1_000 - len(arrivals) / 50 <= most <= 1_000
    assert 400 - len(arrivals) / 50 <= some <= 400


def test_the_memory_is_bounded_whatever_keys_are_invented() -> None:
    arrivals = Arrivals()
    for number in range(20_000):
        arrivals.add(f"invented {number}")
    assert len(arrivals._counts.counts) <= 512
    assert len(arrivals.report()) <= 100


def contest(guard: Guard, clock: FakeClock, chance: Random, seconds: int) -> tuple[float, int]:
    """Twenty clients at fifty times the limit, each a millisecond further away than the one before, when a second's permits are there.

    Gives how probable it is that each wins by its share of requests, and how much all won together.
    """
    won: Counter[int] = Counter()
    for second in range(seconds):
        begin = BEGIN_US + second * 1_000_000
        arrivals = sorted(
            (begin + chance.randrange(1_000 * client, 1_000_000), client)
            for client in range(CLIENTS)
            for _ in range(50 * LIMIT // CLIENTS)
        )
        for moment, client in arrivals:
            clock.set(moment)
            won[client] += guard.check(Request("GET", "/p/1")).allowed
    total = sum(won.values())
    expected = total / CLIENTS
    chi_squared = sum((won[client] - expected) ** 2 / expected for client in range(CLIENTS))
    return p_of_chi_squared(chi_squared, CLIENTS - 1), total


def test_everybody_wins_by_their_share_of_requests_and_few_ask() -> None:
    chance, clock, seconds = Random(7), FakeClock(BEGIN_US), 20
    guard = Guard(policy(), clock=clock)
    guard._evaluator.dropping.chance = chance.random
    probability, won = contest(guard, clock, chance, seconds)
    assert probability > 1e-4
    assert won >= 0.97 * LIMIT * seconds, "the limit is used"
    asked = 50 * LIMIT * seconds - guard._evaluator.dropping._arrivals.dropped
    assert asked <= 2.5 * LIMIT * seconds


def test_without_chance_the_nearest_win() -> None:
    chance, clock = Random(7), FakeClock(BEGIN_US)
    guard = Guard(policy(), clock=clock)
    guard._evaluator.dropping.chance = lambda: 0.0
    probability, _ = contest(guard, clock, chance, 5)
    assert probability < 1e-4


def p_of_chi_squared(value: float, degrees: int) -> float:
    """By a sum for even degrees; one more degree of freedom is stricter than the odd number."""
    term = total = exp(-value / 2)
    for number in range(1, (degrees + 1) // 2):
        term *= value / 2 / number
        total += term
    return min(1.0, total)


def test_a_quiet_key_is_never_dropped() -> None:
    clock = FakeClock(BEGIN_US)
    guard = Guard(policy(), clock=clock)
    guard._evaluator.dropping.chance = lambda: 0.999
    for _ in range(1_000):
        clock.advance(0.006)
        assert guard.check(Request("GET", "/p/2")).decisions[0].limit == LIMIT
    assert guard._evaluator.dropping._arrivals.dropped == 0


def test_the_store_is_asked_by_few_and_what_is_dropped_is_counted(redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    store = RedisStore.from_url(redis7.url, budget_us=10_000_000)
    guard = Guard(policy(rpu=10), store)
    guard._evaluator.dropping.chance = lambda: 0.999_999
    tries: list[tuple[dict[str, int], Verdict, dict[str, int]]] = []

    def is_dropped() -> bool:
        """Right behind a crowd: who stands still for a second in between is no longer one of too many."""
        for _ in range(100):
            guard.check(Request("GET", "/p/1"))
        tries.append((store.counts(), guard.check(Request("GET", "/p/1")), store.counts()))
        before, _, after = tries[-1]
        return after["dropped"] > before["dropped"]

    try:
        until(is_dropped, "there are too many")
        before, verdict, after = tries[-1]
        assert not verdict
        assert verdict.denied_by is not None
        assert verdict.decisions[0].retry_after == 1.0
        assert (after["trips"], after["deny_cache_hits"]) == (
            before["trips"],
            before["deny_cache_hits"],
        )
        assert after["dropped"] == before["dropped"] + 1
    finally:
        store.close()


def said_to(server: Server, steps: Exchange) -> None:
    def perform(command: Command) -> Any:
        return server.ask(*command.words)

    server.ask("SCRIPT", "LOAD", scripts()["arrivals"].text)
    drive(steps, perform)


def test_arrivals_are_summed_over_the_fleet(redis7: Server) -> None:
    clock = FakeClock(0)

    def is_summed() -> bool:
        """All have said it in the same second of the server, or it is done again."""
        redis7.ask("FLUSHALL")
        nodes = [Arrivals(lambda: clock() / 1_000_000) for _ in range(3)]
        for node, times in zip(nodes, (40, 50, 60), strict=True):
            for _ in range(times):
                node.add("hot")
            node.add("cold")
        clock.advance(1.0)
        for node in nodes:
            said_to(redis7, exchange_arrivals("diana", node))
        return [node.add("hot") for node in nodes] == [40.0, 90.0, 150.0]

    until(is_summed, "each has heard of those before it")


def test_a_sum_that_is_not_renewed_is_forgotten() -> None:
    clock = FakeClock(0)
    arrivals = Arrivals(lambda: clock() / 1_000_000)
    arrivals.hear({"hot": 500.0})
    assert arrivals.add("hot") == 500.0
    clock.advance(3.5)
    assert arrivals.add("hot") < 10


def test_from_coroutines(redis7: Server) -> None:
    async def ask() -> bool:
        guard = AsyncGuard(policy(rpu=10), f"{redis7.url}?budget=10s")
        guard._evaluator.dropping.chance = lambda: 0.999_999
        try:
            for _ in range(2_000):
                verdict = await guard.check(Request("GET", "/p/1"))
                if not verdict and verdict.decisions[0].retry_after == 1.0:
                    return True
            return False
        finally:
            await guard.close()

    assert asyncio.run(ask())


@pytest.mark.parametrize("scope", ["local", "divided"])
def test_where_no_store_is_asked_it_is_refused(scope: str) -> None:
    with pytest.raises(ConfigError, match=f"a rule of scope {scope} asks none"):
        policy(scope=scope)


def test_as_a_default_it_is_for_those_that_ask() -> None:
    rules = rules_from_bytes(
        b"defaults: {drop: random, unit: second, rpu: 5}\n"
        b"limits: [{url: /, rules: [{name: a, scope: global}, {name: b, scope: local}, "
        b"{name: c, algo: C, most: 5, scope: global}]}]"
    )
    assert {rule.name: rule.drop for rule in rules.rules} == {"a": "random", "b": None, "c": None}


def test_so_many_at_once_is_no_rate_to_compare_with() -> None:
    with pytest.raises(ConfigError, match="so many at once is none; remove it"):
        rules_from_bytes(
            b"{url: /, rules: [{algo: C, most: 5, scope: global, drop: random}]}",
        )


def test_other_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="drop"):
        policy(more=", drop: oldest")


def test_in_the_shadow_nothing_is_dropped() -> None:
    guard = Guard(policy(rpu=1, more=", mode: shadow"))
    guard._evaluator.dropping.chance = lambda: 0.999_999
    assert all(guard.check(Request("GET", "/p/1")) for _ in range(500))
