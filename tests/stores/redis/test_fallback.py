"""Each rule does what its `when_down` says, this node takes its share, and what it admitted is charged once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from diana import Limiter
from diana.core.charge import Charge
from diana.core.decision import Decision
from diana.stores.redis.maintenance.heartbeat import nodes_of_store
from diana.stores.redis.protocol.server_clock import ServerClock
from diana.stores.redis.store import RedisStore
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import PATIENT, meter, opened, until_asked, used, window


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(REDIS_7) as server:
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[RedisStore]:
    with opened(server.url, PATIENT) as store:
        until_asked(store, window())
        yield store


def lose(server: Server, store: RedisStore) -> None:
    server.kill()
    until(lambda: store.decide([(window(name="probe"), "k", 1)])[0].degraded, "it is lost")
    until(lambda: store.lost, "it is lost")


def find(server: Server, store: RedisStore) -> None:
    server.restart()
    until(lambda: not store.lost, "it is back")


def passed(told: list[Decision]) -> list[bool]:
    return [bool(one) for one in told]


@pytest.mark.parametrize(
    ("when_down", "admitted"), [("local", 3), ("open", 10), ("closed", 0)], ids=str
)
def test_a_rule_does_what_it_says(
    when_down: str, admitted: int, server: Server, store: RedisStore
) -> None:
    three = window(3, when_down=when_down)
    lose(server, store)
    told = [store.decide([(three, "k", 1)])[0] for _ in range(10)]
    assert sum(passed(told)) == admitted
    assert all(one.degraded for one in told)
    (seen,) = store.peek([(three, "k", 1)])
    assert seen.degraded
    assert bool(seen) is (when_down == "open")
    if when_down == "closed":
        assert told[0].retry_after == 1.0


@pytest.mark.parametrize("when_down", ["local", "open", "closed"])
def test_a_limiter_says_it_too(when_down: str, server: Server, store: RedisStore) -> None:
    limiter = Limiter(
        "3/day", algo="W", align="first", store=store, name="own", when_down=when_down
    )
    lose(server, store)
    admitted = sum(passed([limiter.take("k") for _ in range(10)]))
    assert admitted == {"local": 3, "open": 10, "closed": 0}[when_down]


def test_rules_that_differ_in_one_request(server: Server, store: RedisStore) -> None:
    local, other = window(3, "local"), window(5, "other")
    opened_wide = window(1, "open", when_down="open")
    closed = window(9, "closed", when_down="closed")
    lose(server, store)
    both = [Charge(local, "k", 1), Charge(opened_wide, "k", 1)]
    told = [store.decide(both) for _ in range(5)]
    assert [passed(one) for one in told] == [[True, True]] * 3 + [[False, True]] * 2
    # All or nothing: what the closed rule denies is charged to none.
    told = [store.decide([Charge(other, "k", 1), Charge(closed, "k", 1)]) for _ in range(5)]
    assert [passed(one) for one in told] == [[True, False]] * 5
    assert store.peek([(other, "k", 0)])[0].remaining == 5
    assert all(decision.degraded for one in told for decision in one)

    find(server, store)
    until(lambda: used(store, local) == 3, "what was admitted is charged")
    assert (used(store, other), used(store, closed), used(store, opened_wide)) == (0, 0, 0)


def test_what_was_admitted_is_charged_once(server: Server, store: RedisStore) -> None:
    ten = window(10)
    for _ in range(2):
        lose(server, store)
        before = store.counts()["settled"]
        told = [store.decide([(ten, "k", 1)])[0] for _ in range(4)]
        assert all(told)
        find(server, store)
        until(lambda before=before: store.counts()["settled"] - before >= 5, "it is settled")  # type: ignore[misc]
        # The server came back empty. Four of `k`, one of the probe.
        assert used(store, ten) == 4
        for other in ("k", "other"):
            until_asked(store, ten, other)
        assert used(store, ten) == 4
        assert store.counts()["settled"] - before == 5
        store.reset(ten, "k")


def test_many_are_settled_in_several_commands(server: Server, store: RedisStore) -> None:
    ten, keys = window(10), [f"k{number}" for number in range(300)]
    lose(server, store)
    for key in keys:
        assert store.decide([(ten, key, 2)])[0]
    find(server, store)
    until(lambda: store.counts()["settled"] >= 600, "they are settled")
    assert [used(store, ten, key) for key in keys] == [2] * 300


@pytest.mark.parametrize("is_known", [True, False], ids=["lost", "not yet known to be lost"])
def test_what_cannot_be_sent_is_owed_until_it_can_be(
    is_known: bool, server: Server, store: RedisStore
) -> None:
    """A background thread may find the books filled, and the server gone, in the midst of its round."""
    ten = window(10)
    lose(server, store)
    for _ in range(4):
        store.decide([(ten, "k", 1)])
    ((lost, connector),) = store._keeper._connectors.items()  # type: ignore[union-attr]
    lost.breaker.is_open = is_known
    assert not connector._settles_more()
    find(server, store)
    until(lambda: used(store, ten) == 4, "all are charged")


def test_what_no_longer_counts_here_is_not_charged(server: Server, store: RedisStore) -> None:
    bucket = meter("TB", "10/second", "leaks")
    lose(server, store)
    assert store.decide([(bucket, "k", 10)])[0]
    until(lambda: store.peek([(bucket, "k", 0)])[0].remaining == 10, "it has run off")
    find(server, store)
    assert used(store, bucket) == 0


def test_a_refund_of_what_was_counted_here_stays_here(server: Server, store: RedisStore) -> None:
    ten = window(10)
    lose(server, store)
    told = [store.decide([(ten, "k", 1)])[0] for _ in range(4)]
    store.refund_here([(ten, "k", 1)], told[0].at)
    find(server, store)
    until(lambda: used(store, ten) == 3, "three are charged")


def test_the_setting_says_how_many_share_when_nobody_knows(server: Server) -> None:
    server.kill()
    with opened(server.url, nodes=4) as store:
        told = [store.decide([(window(100), "k", 1)])[0] for _ in range(100)]
        assert sum(passed(told)) == 25
        assert all(one.degraded for one in told)


def test_live_nodes_share(server: Server, store: RedisStore) -> None:
    with opened(server.url), opened(server.url), opened(server.url, PATIENT) as last:
        until(lambda: len(nodes_of_store(server.url)) == 4, "all four are heard of")
        assert {node.pid for node in nodes_of_store(server.url)} == {os.getpid()}
        until(
            lambda: last.shares.share.total == store.shares.share.total == 4,
            "all four know",
        )
        lose(server, store)
        told = [store.decide([(window(100), "k", 1)])[0] for _ in range(100)]
        assert sum(passed(told)) == 25


def test_thousands_of_keys_are_settled_in_small_steps(server: Server, store: RedisStore) -> None:
    """In calls as small as any other, while decisions are global again."""
    day = window(100)
    keys = [f"k{number}" for number in range(2_000)]
    lose(server, store)
    assert all(store.decide([(day, key, 3)])[0] for key in keys)
    fallback = store.decider()._fallback
    step = fallback.settle(ServerClock(), lambda _: True, lambda _: 0, 1.0)
    assert step is not None
    exchanges, admitted = step
    assert len(exchanges) == 13, "at most 32 counters in each"
    assert admitted > 1_100
    server.restart()
    until(lambda: not store.lost, "it is back")
    until(lambda: not fallback.owes(), "all is sent")
    until(lambda: used(store, day, keys[-1]) == 3, "all is settled")
