"""Processes that share a zone are one node of a fleet, and count in the zone while the store is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from diana import Guard, Request
from diana.rules.loading import rules_from_bytes
from diana.stores.redis.maintenance.heartbeat import nodes_of_store
from diana.stores.redis.store import RedisStore
from diana.stores.zone.store import SharedStore
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import until_asked, window
from tests.stores.shared.zones import zone_name

BUDGET_US = 5_000_000


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(REDIS_7) as server:
        yield server


@pytest.fixture
def zone() -> Iterator[SharedStore]:
    with zone_name() as name:
        yield SharedStore(name, 4 << 20)


@pytest.fixture
def workers(server: Server, zone: SharedStore) -> Iterator[list[RedisStore]]:
    """Two stores with one zone, as two processes of a machine have them."""
    with ExitStack() as stack:
        stores = [RedisStore.from_url(server.url, budget_us=BUDGET_US, zone=zone) for _ in range(2)]
        for store in stores:
            stack.callback(store.close)
            until_asked(store, window())
        yield stores


def test_they_are_one_node(server: Server, zone: SharedStore, workers: list[RedisStore]) -> None:
    until(lambda: [node.id for node in nodes_of_store(server.url)] == [zone.node], "it is heard of")
    alone = RedisStore.from_url(server.url, budget_us=BUDGET_US)
    until(lambda: len(nodes_of_store(server.url)) == 2, "another node joins")
    until(lambda: all(store.shares.share.total == 2 for store in workers), "both know of two")
    alone.close()
    until(lambda: len(nodes_of_store(server.url)) == 1, "it has left")


def test_one_that_ends_does_not_take_the_node_with_it(
    server: Server, zone: SharedStore, workers: list[RedisStore]
) -> None:
    until(lambda: len(nodes_of_store(server.url)) == 1, "the node is heard of")
    workers[0].close()
    assert [node.id for node in nodes_of_store(server.url)] == [zone.node]


def test_while_the_store_is_lost_they_count_together_in_the_zone(
    server: Server, zone: SharedStore, workers: list[RedisStore]
) -> None:
    server.kill()
    for store in workers:
        until(lambda: store.decide([(window(name="probe"), "k", 1)])[0].degraded, "it is lost")  # noqa: B023
    three = window(3, name="three")
    told = [workers[step % 2].decide([(three, "k", 1)])[0] for step in range(8)]
    assert all(one.degraded for one in told)
    assert [bool(one) for one in told] == [True] * 3 + [False] * 5
    assert zone.counts()["keys"] >= 1


def test_a_guard_gives_its_zone_to_its_store(server: Server, zone: SharedStore) -> None:
    rules = f"local_store: shared://{zone.file.name}\nlimits: [{{url: /, rules: [{{unit: hour, rpu: 2, scope: global}}]}}]"
    policy = rules_from_bytes(rules.encode())
    guard = Guard(policy, f"{server.url}?budget=5s")
    assert guard.check(Request("GET", "/", [], "", "10.0.0.1")).allowed
    until(lambda: [node.id for node in nodes_of_store(server.url)] == [zone.node], "it is heard of")
    guard.close()
