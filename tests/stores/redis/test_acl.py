"""The least that a user must be allowed: with these rights everything works, and without any one of them something is missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from diana.core.charge import Charge
from diana.core.errors import StoreError
from diana.stores.redis.leases.lease_request import lease_key
from diana.stores.redis.maintenance.heartbeat import nodes_of_store
from diana.stores.redis.store import RedisStore
from tests.servers.cluster import Cluster
from tests.servers.programs import PROGRAMS
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.counting import BEGIN_US, PATIENT_US, SECOND_US, meter, opened
from tests.stores.redis.pushing import narrow

KEYS = ["~diana:*", "~{diana:nodes}*"]
RIGHTS = [
    "+evalsha",
    "+eval",
    "+script|load",
    "+script|exists",
    "+time",
    "+get",
    "+set",
    "+del",
    "+exists",
    "+pexpire",
    "+pttl",
    "+zadd",
    "+zcard",
    "+zrem",
    "+zrangebyscore",
    "+zrange",
    "+zcount",
    "+zscore",
    "+zremrangebyscore",
    "+hset",
    "+hdel",
    "+hget",
    "+hgetall",
    "+hlen",
    "+info",
    "+client|setname",
]
TO_SEE_NODES = ["+time", "+zrange", "+hgetall", "+client|setname"]
IN_A_CLUSTER = ["+cluster|slots", "+asking"]
PASSWORD = "pass"


@pytest.fixture(scope="module", params=PROGRAMS)
def strict(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of which a warning is due, so that it can be missed."""
    with Server(PROGRAMS[request.param], "--maxmemory-policy", "allkeys-lru") as server:
        yield server


def allow(server: Server, user: str, rights: list[str]) -> None:
    server.ask("ACL", "SETUSER", user, "reset", "on", f">{PASSWORD}", *KEYS, "-@all", *rights)
    server.ask("ACL", "LOG", "RESET")


def url_for(server: Server, user: str) -> str:
    return server.url.replace("://", f"://{user}:{PASSWORD}@")


def refusals(server: Server) -> list[bytes]:
    return [entry[b"object"] for entry in server.ask("ACL", "LOG")]


def troubles(server: Server, store: RedisStore, log: pytest.LogCaptureFixture) -> list[str]:
    """Use everything once; what did not work."""
    found = []
    some, other = meter("acl", rpu=2, unit_us=60 * SECOND_US), narrow("acl", "HM")
    server.ask("SCRIPT", "FLUSH")
    for name, charges in {
        "take": [Charge(some, "k")],
        "compare and swap": [Charge(other, "k")],
        "denial": [Charge(some, "k", 3)],
    }.items():
        if any(decision.degraded for decision in store.decide(charges)):
            found.append(name)
    if any(_log_decisions(store)):
        found.append("a long log")
    server.ask("DEL", "diana:acl|SL|minute|k")
    (decision,) = store.decide([Charge(some, "k")])
    store.refund([Charge(some, "k")], decision.at)
    if store.peek([Charge(some, "k")])[0].degraded:
        found.append("peek")
    try:
        store.reset(some, "k")
        store.reset(other, "k")
    except StoreError:
        found.append("reset")
    counter = "diana:acl fast|TB|second|k"
    held = lease_key(counter.encode())
    server.ask("HSET", held, "", "5,1,1", "gone", "1,0,0,5,1,0")  # of a node that died long ago
    (decision,) = store.leased.decide([Charge(meter("acl fast", rpu=100), "k")])
    if decision.degraded or server.ask("HEXISTS", held, "gone"):
        found.append("leases")
    server.ask("DEL", counter, held)
    found += (said for said in log.messages if "evicts" not in said)
    registered = set(server.ask("ZRANGE", "{diana:nodes}", 0, -1)) - {b"gone", b"gone too"}
    if registered and "evicts by allkeys-lru" not in log.text:
        found.append("the warning of eviction")
    return found


def _log_decisions(store: RedisStore) -> Iterator[bool]:
    """Whether each is degraded, until one is: of a log that is so long that it has blocks, and of which something expires."""
    log = meter("acl", "SL", rpu=1_000, unit_us=60 * SECOND_US)
    for number in range(260):
        yield store.decide([Charge(log, "k")], BEGIN_US + number)[0].degraded
    yield store.decide([Charge(log, "k")], BEGIN_US + 60 * SECOND_US + 5)[0].degraded


def is_known(server: Server) -> bool:
    """The node has registered, and told of its scripts and its limit."""
    keys = ["{diana:nodes}", "diana:script:acquire", "diana:limit:diana:acl|TB|minute"]
    return bool(server.ask("EXISTS", *keys) == 3)


def test_with_these_rights_everything_works(
    strict: Server, caplog: pytest.LogCaptureFixture
) -> None:
    strict.ask("FLUSHALL")
    allow(strict, "diana", RIGHTS)
    allow(strict, "viewer", TO_SEE_NODES)
    with caplog.at_level(logging.WARNING, "diana"):
        with opened(url_for(strict, "diana"), budget_us=PATIENT_US) as store:
            # It may come a moment later than the node's name.
            until(lambda: "evicts by allkeys-lru" in caplog.text, "the warning is said")
            assert troubles(strict, store, caplog) == []
            until(lambda: is_known(strict), "it is known")
            strict.ask("FLUSHALL")
            until(lambda: is_known(strict), "it is known again")
            assert troubles(strict, store, caplog) == []
            assert len(nodes_of_store(url_for(strict, "viewer"))) == 1
        until(lambda: not strict.ask("EXISTS", "{diana:nodes}"), "the node has left")
    assert refusals(strict) == []


@pytest.mark.parametrize("right", RIGHTS)
def test_without_one_of_them_something_is_missing(
    right: str, strict: Server, caplog: pytest.LogCaptureFixture
) -> None:
    strict.ask("FLUSHALL")
    strict.ask("SCRIPT", "FLUSH")
    # Two nodes that are long gone: there is somebody to remove.
    strict.ask("ZADD", "{diana:nodes}", 1, "gone", 2, "gone too")
    strict.ask("HSET", "{diana:nodes}:said", "gone", "{}")
    allow(strict, "diana", [one for one in RIGHTS if one != right])
    with (
        caplog.at_level(logging.WARNING, "diana"),
        opened(url_for(strict, "diana"), budget_us=PATIENT_US) as store,
    ):
        # A warning that is due may come a moment later than the node's name: that is no trouble yet.
        until(lambda: troubles(strict, store, caplog) and refusals(strict), f"{right} is missed")


def test_in_a_cluster(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    for node in cluster.nodes:
        allow(node, "diana", [*RIGHTS, *IN_A_CLUSTER])
    url = cluster.url.replace("://", f"://diana:{PASSWORD}@")
    some = meter("acl", rpu=100)
    with caplog.at_level(logging.WARNING, "diana"), opened(url) as store:
        for number in range(50):
            assert not store.decide([Charge(some, str(number))])[0].degraded
        home = cluster.node_of_slot(cluster.slot_of_key("{diana:nodes}"))
        until(lambda: home.ask("EXISTS", "{diana:nodes}"), "the node is known")
    assert caplog.messages == []
    assert [refusals(node) for node in cluster.nodes] == [[], [], []]
