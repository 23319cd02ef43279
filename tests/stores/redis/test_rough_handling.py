"""What people do to a store that it did not ask for: signals, many loops, refunds at odd moments, damaged counters."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
import redis

from diana import AsyncLimiter, ConfigError, Limiter
from diana.stores.redis.store import RedisStore
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import until_asked, window


@pytest.fixture
def store(redis7: Server) -> Iterator[RedisStore]:
    redis7.ask("FLUSHALL")
    store = RedisStore.from_url(redis7.url, budget_us=5_000_000)
    until_asked(store, window(name="fixture"))
    yield store
    store.close()


# A strike may fall where Python ignores it and warns: while a connection that was dropped is finalized.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_handler_may_raise_at_any_moment(store: RedisStore) -> None:
    limiter = Limiter("1000000/second", store=store, name="signals")

    def strike(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, strike)
    struck = 0
    try:
        while struck < 300:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001 + random.random() * 0.001)
                for _ in range(10_000):  # until the strike, if it is not ignored
                    limiter.take("a")
            except TimeoutError:
                struck += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    until(lambda: not limiter.take("a").degraded, "it counts globally")


@pytest.mark.parametrize("algo", ["TB", "LB", "W", "SW", "SL"])
def test_a_full_refund_leaves_nothing(store: RedisStore, algo: str) -> None:
    burst = 2 if algo == "LB" else None
    limiter = Limiter("3/hour", algo=algo, burst=burst, store=store, name="refund")
    decision = limiter.take("a", cost=3)
    assert decision
    limiter.refund(decision)
    assert limiter.take("a", cost=3)


def test_many_loops_that_come_and_go(store: RedisStore) -> None:
    limiter = AsyncLimiter("1000000/second", store=store, name="loops")
    errors: list[BaseException] = []

    async def one() -> None:
        await limiter.take("a")

    def work() -> None:
        try:
            for _ in range(30):
                asyncio.run(one())
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_what_was_let_pass_uncharged_is_not_refunded_to_somebody_else() -> None:
    with Server(REDIS_7) as server:
        store = RedisStore.from_url(server.url, budget_us=3_000_000)
        limiter = Limiter("3/day", algo="W", align="first", store=store, name="r", when_down="open")
        until_asked(store, window())
        server.freeze()
        decision = limiter.take("a")
        assert decision
        assert decision.degraded
        server.thaw()
        until_asked(store, window())
        charged = [limiter.take("a") for _ in range(3)]
        assert not any(one.degraded for one in charged), "the server did not decide"
        assert all(charged)
        limiter.refund(decision)
        denied = limiter.take("a")
        assert not denied.degraded
        assert not denied
        store.close()


def test_what_was_charged_there_is_not_refunded_here() -> None:
    with Server(REDIS_7) as server:
        store = RedisStore.from_url(server.url, budget_us=3_000_000)
        limiter = Limiter("4/day", algo="W", align="first", store=store, name="r")
        until_asked(store, window())
        there = [limiter.take("a") for _ in range(4)]
        assert not any(one.degraded for one in there), "the server did not decide"
        assert all(there)
        server.kill()
        until(lambda: limiter.take("y").degraded, "the loss is noticed")
        here = 0
        for decision in there:
            here += bool(limiter.take("a"))
            limiter.refund(decision)
        here += sum(bool(limiter.take("a")) for _ in range(4))
        assert here <= 4
        store.close()


def test_a_damaged_counter_hurts_nobody_but_itself(store: RedisStore, redis7: Server) -> None:
    limiter = Limiter("3/hour", store=store, name="damaged")
    decision = limiter.take("a")
    assert not decision.degraded
    client = redis.Redis(port=redis7.port)
    (key,) = client.keys("diana:damaged|*|a")
    client.set(key, "1,2")
    limiter.refund(decision)
    assert limiter.take("a").degraded
    assert not limiter.take("b").degraded
    client.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"namespace": "a b{|"}, "no namespace"),
        ({"namespace": 5}, "no namespace"),
        ({"nodes": -5}, "nodes"),
        ({"nodes": "4"}, "nodes"),
        ({"budget_us": -1}, "budget"),
        ({"budget_us": "50ms"}, "budget"),
    ],
)
def test_settings_in_code_are_checked_too(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RedisStore.from_url("redis://localhost:1", **settings)


def test_the_class_of_a_client_is_no_client() -> None:
    with pytest.raises(ConfigError, match="is no store"):
        Limiter("1/second", store=redis.Redis, name="x")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["", "", "zap", 1, '["W",[3,1000000,1]]', 1], "zap"),
        (["abc", "", "take", 1, '["W",[3,1000000,1]]', 1], "time"),
        (["", "", "take", 1, '["W",[3,1000000,1]]', "1e3"], "whole number"),
        (["", "", "take", 1, '["ZZ",[3,1000000,1]]', 1], "no algorithm"),
    ],
)
def test_others_mistakes_are_told(
    store: RedisStore, redis7: Server, words: list[Any], said: str
) -> None:
    until(lambda: redis7.ask("EXISTS", "diana:script:acquire"), "the scripts are there")
    sha = redis7.ask("GET", "diana:script:acquire")
    try:
        reply = str(redis7.ask("EVALSHA", sha, 1, "diana:some", *words))
    except redis.ResponseError as error:
        reply = str(error)
    assert said in reply
    assert redis7.ask("EXISTS", "diana:some") == 0


@pytest.mark.parametrize("limit", ['["TB",[1]]', '["TB",[]]', '["ZZ",[1,2]]', "TB 1", ""])
def test_init_takes_limits_only(store: RedisStore, redis7: Server, limit: str) -> None:
    until(lambda: redis7.ask("EXISTS", "diana:script:init"), "the scripts are there")
    sha = redis7.ask("GET", "diana:script:init")
    with pytest.raises(redis.ResponseError, match="DIANA"):
        redis7.ask("EVALSHA", sha, 1, "diana:limit:mine", limit, 1000)
