"""Where the time is given, permits are asked for one by one, and the leased side of a store is as exact as any store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diana.core.contracts import Store
from diana.core.lease import why_not_leased
from diana.core.plugins import algorithms
from diana.stores.redis.store import RedisStore
from diana.testing import store_contract
from tests.servers.cluster import Cluster
from tests.servers.server import Server
from tests.stores.redis.counting import PATIENT_US

LEASED = [one for one in algorithms().values() if why_not_leased(one) is None]


@pytest.fixture
def stores() -> Iterator[list[RedisStore]]:
    opened: list[RedisStore] = []
    yield opened
    for store in opened:
        store.close()


def test_these_algorithms_can_be_leased() -> None:
    assert sorted(one.code for one in LEASED) == ["SW", "TB", "W"]


def test_one_server_keeps_the_contract(redis7: Server, stores: list[RedisStore]) -> None:
    def opened() -> Store:
        redis7.ask("FLUSHALL")
        stores.append(RedisStore.from_url(redis7.url, budget_us=PATIENT_US))
        return stores[-1].leased

    store_contract(opened, examples=20, counts=LEASED, reports_more_after=False)


def test_a_cluster_keeps_the_contract(cluster: Cluster, stores: list[RedisStore]) -> None:
    def opened() -> Store:
        for node in cluster.nodes:
            node.ask("FLUSHALL")
        stores.append(RedisStore.from_url(cluster.url, budget_us=PATIENT_US))
        return stores[-1].leased

    store_contract(opened, examples=10, counts=LEASED, reports_more_after=False)


def test_a_client_of_your_own_keeps_the_contract(redis7: Server, stores: list[RedisStore]) -> None:
    def opened() -> Store:
        redis7.ask("FLUSHALL")
        stores.append(RedisStore.from_client(redis7.client()))
        return stores[-1].leased

    store_contract(opened, examples=10, counts=LEASED, reports_more_after=False)
