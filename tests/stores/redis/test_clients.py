"""Somebody's own client: redis-py's and valkey-py's, synchronous and asynchronous, of one server and of a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

from diana import AsyncGuard, AsyncLimiter, Guard, Limiter, Request
from diana.core.charge import Charge
from diana.core.errors import ConfigError
from diana.core.limit import uses_slots
from diana.rules.loading import load_rules
from diana.runtime.entry_points import algorithms
from diana.stores.memory import MemoryStore
from tests.servers.cluster import Cluster
from tests.servers.ports import HOST
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.counting import BEGIN_US, PATIENT_US, SECOND_US, calls, meter, opened
from tests.stores.redis.pushing import narrow

MakeClient = Callable[..., Any]
ONE_SERVER: dict[str, MakeClient] = {"redis-py": redis.Redis, "valkey-py": valkey.Valkey}
CLUSTERS: dict[str, MakeClient] = {
    "redis-py": redis.RedisCluster,
    "valkey-py": valkey.ValkeyCluster,
}
ASYNC_CLUSTERS: dict[str, MakeClient] = {
    "redis-py": redis.asyncio.RedisCluster,
    "valkey-py": valkey.asyncio.ValkeyCluster,
}


def by_name(clients: dict[str, MakeClient]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("make", clients.values(), ids=clients.keys())


decoding = pytest.mark.parametrize("decoded", [False, True], ids=["bytes", "decoded"])


@decoding
@by_name(ONE_SERVER)
def test_a_client_of_one_server(make: MakeClient, decoded: bool, redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    redis7.ask("SCRIPT", "FLUSH")
    with make(host=HOST, port=redis7.port, decode_responses=decoded) as client:
        before = calls(redis7)
        with opened(client) as store:
            _decides_as_the_memory_store(store)
        assert calls(redis7) > before
        assert client.ping(), "the client is its owner's to close"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a limiter opens the store: a machine that stands still shall not look like a lost one."""
    monkeypatch.setattr("diana.stores.redis.store.BUDGET_US", PATIENT_US)


@decoding
@pytest.mark.parametrize("package", [redis.asyncio.Redis, valkey.asyncio.Valkey])
def test_an_asynchronous_client(package: MakeClient, decoded: bool, redis7: Server) -> None:
    redis7.ask("FLUSHALL")

    async def use() -> None:
        async with package(host=HOST, port=redis7.port, decode_responses=decoded) as client:
            limiter = AsyncLimiter("3/minute", store=client, name="async")
            decisions = await asyncio.gather(*(limiter.take("k") for _ in range(5)))
            assert sorted(map(bool, decisions)) == [False, False, True, True, True]
            assert not any(decision.degraded for decision in decisions)
            await limiter.refund(next(filter(None, decisions)))
            assert await limiter.take("k")
            await limiter.reset("k")
            assert (await limiter.peek("k")).remaining == 2
            await limiter.close()
            assert await client.ping()

    asyncio.run(use())


@by_name(ONE_SERVER)
def test_a_synchronous_client_under_coroutines_works_in_threads(
    make: MakeClient, redis7: Server
) -> None:
    redis7.ask("FLUSHALL")

    async def use(client: Any) -> None:
        limiter = AsyncLimiter("3/minute", store=client, name="to thread")
        decisions = await asyncio.gather(*(limiter.take("k") for _ in range(5)))
        assert sum(map(bool, decisions)) == 3
        assert not any(decision.degraded for decision in decisions)

    with make(host=HOST, port=redis7.port) as client:
        asyncio.run(use(client))


@decoding
@by_name(CLUSTERS)
def test_a_client_of_a_cluster(make: MakeClient, decoded: bool, cluster: Cluster) -> None:
    cluster.flush()
    port = cluster.nodes[0].port
    with make(host=HOST, port=port, decode_responses=decoded) as client, opened(client) as store:
        _decides_as_the_memory_store(store)
        for number in range(20):
            charges = [Charge(meter(f"many {place}"), f"key {number}") for place in range(4)]
            assert not any(decision.degraded for decision in store.decide(charges, BEGIN_US))


@by_name(ASYNC_CLUSTERS)
def test_an_asynchronous_client_of_a_cluster(make: MakeClient, cluster: Cluster) -> None:
    cluster.flush()

    async def use() -> None:
        async with make(host=HOST, port=cluster.nodes[0].port) as client:
            limiter = AsyncLimiter("3/second; 3/minute", store=client, name="cluster")
            for key in ("a", "b", "c"):
                decisions = [await limiter.take(key) for _ in range(4)]
                assert [bool(decision) for decision in decisions] == [True, True, True, False]
                assert not any(decision.degraded for decision in decisions)

    asyncio.run(use())


def test_an_asynchronous_client_without_await_is_a_mistake(redis7: Server) -> None:
    client: Any = redis.asyncio.Redis(host=HOST, port=redis7.port)
    with pytest.raises(ConfigError, match="use AsyncLimiter or AsyncGuard"):
        Limiter("3/minute", store=client, name="wrong").take("k")


def test_a_guard_takes_a_client(redis7: Server, tmp_path: Any) -> None:
    redis7.ask("FLUSHALL")
    file = tmp_path / "diana.yaml"
    file.write_text("url: /\nrules: [{unit: minute, rpu: 1, scope: global}]\n")
    with redis7.client() as client:
        assert Guard.from_file(file, client).check(Request(path="/"))
        assert not Guard(load_rules(file), client).check(Request(path="/"))

    async def check() -> bool:
        client: Any
        async with redis.asyncio.Redis(host=HOST, port=redis7.port) as client:
            return bool(await AsyncGuard.from_file(file, client).check(Request(path="/")))

    assert not asyncio.run(check())


def test_loss_and_return(caplog: pytest.LogCaptureFixture) -> None:
    """While it fails, one request a second tries; what was admitted here is charged once."""
    some = meter("own", rpu=100, unit_us=3_600 * SECOND_US)
    with (
        Server(REDIS_7) as server,
        caplog.at_level(logging.WARNING, "diana"),
        server.client() as client,
        opened(client) as store,
    ):
        assert not store.decide([Charge(some, "k", 10)])[0].degraded
        server.kill()
        decisions = [store.decide([Charge(some, "k")])[0] for _ in range(20)]
        assert all(decision and decision.degraded for decision in decisions)
        assert store.lost
        assert store.counts()["breaker_opened"] == 1
        server.restart()
        until(lambda: not store.decide([Charge(some, "k", 0)])[0].degraded, "it is back")
        assert store.decide([Charge(some, "k", 0)])[0].remaining == 80
        assert not store.lost
        assert store.counts()["settled"] == 20
        assert (store.counts()["breaker_opened"], store.counts()["breaker_closed"]) == (1, 1)
    assert ["unreachable" in said or "is back" in said for said in caplog.messages] == [True, True]


def _decides_as_the_memory_store(store: Any) -> None:
    memory = MemoryStore()
    meters = [meter("own", code, 3) for code in algorithms()] + [narrow("own", "HM", 3)]
    for some in meters:
        for step in range(8):
            charges = [Charge(some, "ä {k}", step % 3)]
            now = BEGIN_US + step * 100_000
            assert store.decide(charges, now) == memory.decide(charges, now)
        store.reset(some, "ä {k}")
        memory.reset(some, "ä {k}")
    # A denial for want of a place is not remembered; what it says beside others is looked at anew only by the store.
    together = [Charge(some, "together") for some in meters if not uses_slots(some.algorithm)]
    for _ in range(5):
        found, wanted = store.decide(together, BEGIN_US), memory.decide(together, BEGIN_US)
        assert [bool(one) for one in found] == [bool(one) for one in wanted]
        assert not any(decision.degraded for decision in found)
