"""A cluster: the counters of one request live in different slots, slots move, masters die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest

from diana.core.charge import Charge
from diana.core.decision import Decision
from diana.redis_client.topology import slot_of_key
from diana.stores.redis.protocol.scripts import scripts
from diana.stores.redis.protocol.wire_format import CounterEncoder
from diana.stores.redis.store import RedisStore
from tests.servers.awake import awake_seconds
from tests.servers.cluster import Cluster
from tests.servers.waiting import until
from tests.stores.redis.callers import (
    BACK,
    BUDGET,
    MARGIN,
    PATIENT,
    SIDES,
    Side,
    opened,
    until_asked,
    used,
    window,
)

KEYS = [f"k{number}" for number in range(24)]


def slot(key: str) -> int:
    (wire_key,) = CounterEncoder(lambda *_: None).keys([(window(), key, 1)])
    return slot_of_key(wire_key)


@contextmanager
def known(cluster: Cluster, budget: float) -> Iterator[RedisStore]:
    """A store that has connections to all masters."""
    cluster.flush()
    day = window()
    with opened(cluster.url, budget) as store:
        for key in KEYS:
            until_asked(store, day, key)
        yield store


@pytest.fixture
def store(cluster: Cluster) -> Iterator[RedisStore]:
    with known(cluster, PATIENT) as store:
        yield store


@pytest.fixture
def hasty(cluster: Cluster) -> Iterator[RedisStore]:
    """It does not wait for long for a master that is frozen, but longer than the others may stand still."""
    with known(cluster, 3.0) as store:
        yield store


def decided(store: RedisStore, charges: list[Charge], side: str) -> list[Decision]:
    if side == "threads":
        return store.decide(charges)
    return asyncio.run(store.asynchronous.decide(charges))


def calls(cluster: Cluster) -> int:
    infos = (node.client().info("commandstats") for node in cluster.masters())
    return sum(info.get("cmdstat_evalsha", {}).get("calls", 0) for info in infos)


@pytest.mark.parametrize("side", ["threads", "tasks"])
def test_counters_in_many_slots_are_charged_together_or_not_at_all(
    side: str, store: RedisStore
) -> None:
    day, one = window(), window(1, "tight")
    several = [Charge(day, key, 1) for key in KEYS]
    assert all(decided(store, several, side))
    assert [used(store, day, key) for key in KEYS] == [1] * len(KEYS)

    assert store.decide([Charge(one, "k", 1)])[0]
    told = decided(store, [*several, Charge(one, "k", 1)], side)
    assert [bool(decision) for decision in told] == [True] * len(KEYS) + [False]
    assert not any(decision.degraded for decision in told)
    # The denied request left no charge, and what it was told of the others says so.
    assert [decision.limit - decision.remaining for decision in told[:-1]] == [1] * len(KEYS)
    assert [used(store, day, key) for key in KEYS] == [1] * len(KEYS)


def test_one_call_per_slot(store: RedisStore, cluster: Cluster) -> None:
    day = window()
    for node in cluster.masters():
        node.ask("CONFIG", "RESETSTAT")
    before = store.counts()["trips"]
    assert all(store.decide([Charge(day, key, 1) for key in KEYS]))
    assert store.counts()["trips"] - before == len({slot(key) for key in KEYS})
    # That this node lives, and its limits, are told in between.
    assert len({slot(key) for key in KEYS}) <= calls(cluster) < 2 * len(KEYS)


def test_tasks_that_wait_together_are_parted_by_slot(store: RedisStore) -> None:
    day = window()

    async def together() -> list[list[Decision]]:
        decide = store.asynchronous.decide
        return await asyncio.gather(*(decide([(day, key, 1)]) for key in KEYS * 4))

    told = asyncio.run(together())
    assert not any(one.degraded for (one,) in told)
    assert [used(store, day, key) for key in KEYS] == [4] * len(KEYS)


def test_nobody_chooses_their_slot() -> None:
    assert len({slot(f"{{tag}}{number}") for number in range(50)}) > 40
    assert len({slot(f"a}}{{tag}}{number}") for number in range(50)}) > 40


@SIDES
def test_slots_move_under_load(side: Side, store: RedisStore, cluster: Cluster) -> None:
    day = window()
    moving = sorted({slot(key) for key in KEYS})[:4]
    with side(store, day, KEYS[:8]) as callers:
        for number in moving:
            old = cluster.node_of_slot(number)
            new = next(node for node in cluster.masters() if node is not old)
            cluster.begin_move(number, new)
            asked = len(callers.told)
            until(lambda asked=asked: len(callers.told) > asked + 30, "it is asked meanwhile")  # type: ignore[misc]
            cluster.finish_move(number)
            callers.until_global()
    assert callers.errors == []
    assert not store.lost
    assert store.counts()["breaker_opened"] == 0
    until(lambda: store.counts()["settled"] == len(callers.passed_here()), "all is settled")
    passed = len(callers.passed_there()) + len(callers.passed_here())
    assert sum(used(store, day, key) for key in KEYS[:8]) == passed


@pytest.mark.parametrize("side", ["threads", "tasks"])
def test_a_slot_on_its_way_is_asked_where_it_goes(
    side: str, store: RedisStore, cluster: Cluster
) -> None:
    day, key = window(), "on its way"
    old = cluster.node_of_slot(slot(key))
    new = next(node for node in cluster.masters() if node is not old)
    cluster.begin_move(slot(key), new)
    try:
        told = [decided(store, [Charge(day, key, 1)], side)[0] for _ in range(3)]
    finally:
        cluster.finish_move(slot(key))
    # The connections to the new master may not all have been ready.
    assert all(told)
    assert not told[-1].degraded


@SIDES
def test_a_frozen_master_hurts_only_its_slots(
    side: Side, hasty: RedisStore, cluster: Cluster
) -> None:
    day, store = window(), hasty
    frozen = cluster.masters()[0]
    homes = {key: cluster.node_of_slot(slot(key)) for key in KEYS}
    hurt = {key for key, home in homes.items() if home is frozen}
    assert hurt and hurt != set(KEYS)  # noqa: PT018
    with side(store, day, [*sorted(hurt)[:4], *sorted(set(KEYS) - hurt)[:4]]) as callers:
        callers.until_global()
        before = len(callers.told)
        frozen.freeze()
        callers.until_degraded(200)
        meanwhile = list(callers.told)[before:]
        frozen.thaw()
        took = callers.until_global()
    assert callers.errors == []
    assert {one.decision.key for one in meanwhile if one.decision.degraded} <= hurt
    assert callers.slowest() < store.budget + MARGIN
    assert took < BACK


def test_a_frozen_master_does_not_keep_connections_to_others_from_new_loops(
    hasty: RedisStore, cluster: Cluster
) -> None:
    day, store = window(), hasty
    frozen = cluster.masters()[0]
    hurt, well = (
        next(key for key in KEYS if (cluster.node_of_slot(slot(key)) is frozen) is wanted)
        for wanted in (True, False)
    )
    frozen.freeze()
    try:
        until(lambda: decided(store, [Charge(day, hurt)], "threads")[0].degraded, "it is missed")
        # Each has a loop of its own, so each needs a connection of its own, while the keeper waits for the frozen one.
        end, told, took = awake_seconds() + 2.0, list[Decision](), list[float]()
        while (began := awake_seconds()) < end:
            told += decided(store, [Charge(day, well)], "tasks")
            took.append(awake_seconds() - began)
    finally:
        frozen.thaw()
    assert not any(one.degraded for one in told)
    assert median(took) < BUDGET
    until(lambda: not store.lost, "all are well again")


@SIDES
def test_a_replica_takes_over(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    day = window()
    with Cluster(replicas=True) as cluster, opened(cluster.url) as store:
        for key in KEYS:
            until_asked(store, day, key)
        with side(store, day, KEYS[:8]) as callers:
            cluster.kill_master(cluster.masters().index(cluster.node_of_slot(slot(KEYS[0]))))
            callers.until_global()
            # Of its slots somebody may still wait, while the others go on.
            until(lambda: not store.lost, "nobody asks the dead any more")
        assert callers.errors == []
        assert callers.slowest() < BUDGET + MARGIN


@pytest.mark.parametrize("word", ["hold", "take"])
def test_a_place_that_is_held_for_a_moment_is_no_denial_to_remember(
    word: str, store: RedisStore, cluster: Cluster
) -> None:
    """One slot takes the last place, another denies, the place comes back: a node that was denied meanwhile asks again."""
    last = window(1, f"last {word}")
    (key,) = store.decider()._plans.keys([(last, "k", 1)])
    _ask(cluster, word, key, store.decider()._plans.of(last).limit)
    assert not store.decide([(last, "k", 1)])[0]
    cluster.client().delete(key.decode())  # it comes back
    assert bool(store.decide([(last, "k", 1)])[0]) == (word == "hold")


def _ask(cluster: Cluster, word: str, key: bytes, limit: bytes | None) -> None:
    """As another node does it."""
    words = ("", "", word, 1, limit, 1)
    client: Any = cluster.client()
    reply = client.execute_command("EVAL", scripts()["acquire"].text, 1, key, *words)
    assert reply[1][0] == 1
