"""Nodes say that they live: who is there is known, and a limit is shared among them when the store is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diana.core.charge import Charge
from diana.stores.redis.maintenance.heartbeat import SILENCE_MS, FleetNode, nodes_of_store
from tests.servers.cluster import Cluster
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.counting import BEGIN_US, meter, opened

ROOT = Path(__file__).parents[3]
NODE = """
import sys
from diana import Limiter
limiter = Limiter("1/minute", store=sys.argv[1], name="node")
limiter.take("k")
print("ready", flush=True)
sys.stdin.read()
limiter.close()
"""


@pytest.fixture(autouse=True)
def empty(redis7: Server) -> None:
    """Who was killed in the test before is still on the list."""
    redis7.ask("FLUSHALL")


@contextmanager
def a_node(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process that counts in the store until its input ends."""
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert node.stdin is not None
    assert node.stdout is not None
    try:
        assert node.stdout.readline() == "ready\n"
        yield node
    finally:
        node.kill()
        node.wait()
        node.stdin.close()
        node.stdout.close()


def pids(url: str) -> set[int]:
    return {node.pid for node in nodes_of_store(url)}


def test_a_node_appears_and_leaves(redis7: Server) -> None:
    with a_node(redis7.url) as first, a_node(redis7.url) as second:
        until(lambda: pids(redis7.url) == {first.pid, second.pid}, "both are known")
        assert first.stdin is not None
        first.stdin.close()
        until(lambda: pids(redis7.url) == {second.pid}, "it has said that it goes")
        assert first.wait(10) == 0
        (node,) = nodes_of_store(redis7.url)
        assert node.silent_ms < SILENCE_MS


def test_a_killed_node_is_gone_after_a_silence(redis7: Server) -> None:
    with a_node(redis7.url) as living, a_node(redis7.url) as killed:
        until(lambda: pids(redis7.url) == {living.pid, killed.pid}, "both are known")
        (id,) = (node.id for node in nodes_of_store(redis7.url) if node.pid == killed.pid)
        killed.kill()
        killed.wait()
        assert killed.pid in pids(redis7.url), "it was not heard of a moment ago?"
        # So that nobody need wait for it: its last word was that much earlier.
        redis7.ask("ZINCRBY", "{diana:nodes}", -SILENCE_MS, id)
        assert pids(redis7.url) == {living.pid}
        until(lambda: redis7.ask("ZCARD", "{diana:nodes}") == 1, "the living removes it")
        assert redis7.ask("HLEN", "{diana:nodes}:said") == 1


def test_the_registry_ends_with_its_last_node(redis7: Server) -> None:
    with opened(redis7.url):
        until(lambda: nodes_of_store(redis7.url), "the node is known")
        for key in ("{diana:nodes}", "{diana:nodes}:said"):
            assert 0 < redis7.ask("PTTL", key) <= 4 * SILENCE_MS
    assert nodes_of_store(redis7.url) == []


def test_namespaces_are_apart(redis7: Server) -> None:
    with opened(redis7.url, namespace="shop"):
        until(lambda: nodes_of_store(redis7.url, "shop"), "the node is known")
        assert nodes_of_store(f"{redis7.url}?namespace=shop") != []
        assert nodes_of_store(redis7.url) == []


def test_in_a_cluster(cluster: Cluster) -> None:
    with opened(cluster.url), opened(cluster.url):
        until(lambda: len(nodes_of_store(cluster.url)) == 2, "both are known")
        found = nodes_of_store(cluster.url)
    assert len({node.id for node in found}) == 2
    assert all(isinstance(node, FleetNode) for node in found)


def test_a_lost_store_is_divided_by_who_was_there() -> None:
    some = meter("divided", rpu=12)
    with (
        Server(REDIS_7) as server,
        opened(server.url) as store,
        opened(server.url),
        opened(server.url),
    ):
        until(lambda: len(nodes_of_store(server.url)) == 3, "all are known")
        until(lambda: store.shares.share.total == 3, "it has heard of the others")
        server.kill()
        until(lambda: store.decide([Charge(some, "x", 0)], BEGIN_US)[0].degraded, "it is lost")
        decisions = [store.decide([Charge(some, "k")], BEGIN_US)[0] for _ in range(12)]
        assert sum(map(bool, decisions)) == 4


def test_thirty_thousand_limits_do_not_silence_the_heartbeat(redis7: Server) -> None:
    """They are published a few at a time, and the node goes on saying that it lives."""
    some = meter("many", rpu=12)
    with opened(redis7.url) as store:
        until(lambda: nodes_of_store(redis7.url), "the node is known")
        for number in range(30_000):
            store._keeper.publish_limit(f"diana:limit:many {number}".encode(), some)
        last = "diana:limit:many 29999"
        silences: list[int] = []
        while not redis7.ask("EXISTS", last):
            silences += [node.silent_ms for node in nodes_of_store(redis7.url)] or [SILENCE_MS]
        assert max(silences, default=0) < SILENCE_MS
