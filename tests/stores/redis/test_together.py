"""What is asked at once travels together, and nobody is hurt by who sits beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from diana.core.charge import Charge
from diana.stores.redis.store import RedisStore
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.counting import BEGIN_US, acquisitions, calls, meter, opened


@pytest.fixture(scope="module")
def store(redis7: Server) -> Iterator[RedisStore]:
    with opened(redis7.url) as store:
        yield store


def servers_of(store: RedisStore) -> list[Any]:
    return list(store._keeper.topology.servers)


def test_three_rules_of_a_request_are_one_command(store: RedisStore, redis7: Server) -> None:
    rules = [meter("three", code, 1_000) for code in ("TB", "SW", "W")]
    assert all(store.decide([Charge(rule, "first") for rule in rules], BEGIN_US))
    # Until then the background threads may ask for scripts by their text.
    until(lambda: all(one.scripts_are_loaded for one in servers_of(store)), "all are loaded")
    began = monotonic()
    redis7.ask("CONFIG", "RESETSTAT")
    for number in range(100):
        assert all(store.decide([Charge(rule, str(number)) for rule in rules], BEGIN_US))
    # Beside the requests the node says once a second that it lives, and makes its three limits known.
    asked = calls(redis7)
    others = monotonic() - began + 5
    assert 100 <= asked <= 100 + others
    assert calls(redis7, "eval") == 0


@pytest.mark.parametrize(
    ("tasks", "keys", "trips"),
    [(1, 1, 1), (32, 1, 1), (33, 1, 2), (200, 1, 7), (8, 4, 1), (9, 4, 2), (20, 5, 4)],
)
def test_requests_of_one_turn_of_the_loop_travel_together(
    store: RedisStore, redis7: Server, tasks: int, keys: int, trips: int
) -> None:
    """At most 32 counters a call: the server is never busy with one for long."""
    rules = [meter(f"turn {tasks} {place}", rpu=1_000) for place in range(keys)]

    async def ask() -> None:
        side = store.asynchronous
        await side.decide(
            [Charge(rules[0], "first")], BEGIN_US
        )  # from now on there is a connection
        with acquisitions(redis7) as asked:
            requests = ([Charge(rule, str(number)) for rule in rules] for number in range(tasks))
            answers = await asyncio.gather(*(side.decide(one, BEGIN_US) for one in requests))
        assert all(map(all, answers))
        assert len(asked) == trips

    asyncio.run(ask())


def test_tasks_that_come_later_do_not_wait_for_an_answer(store: RedisStore, redis7: Server) -> None:
    rule = meter("turns", rpu=1_000)

    async def ask() -> None:
        side = store.asynchronous
        await side.decide([Charge(rule, "first")], BEGIN_US)
        with acquisitions(redis7) as asked:
            tasks = []
            for number in range(5):
                tasks.append(
                    asyncio.create_task(side.decide([Charge(rule, str(number))], BEGIN_US))
                )
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)
        assert len(asked) == 5

    asyncio.run(ask())


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_cancelled_tasks_charge_stands_and_hurts_no_other(store: RedisStore, turns: int) -> None:
    """Cancelled before it was asked for, before it was sent, and on its way."""
    rule = meter(f"cancelled {turns}", rpu=100)

    async def ask() -> None:
        side = store.asynchronous
        await side.decide([Charge(rule, "k", 0)], BEGIN_US)
        tasks = [asyncio.create_task(side.decide([Charge(rule, "k")], BEGIN_US)) for _ in range(20)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in answers[::2])
        for answer in answers[1::2]:
            assert isinstance(answer, list)
            assert answer[0].allowed
            assert not answer[0].degraded
        (left,) = await side.peek([Charge(rule, "k", 0)], BEGIN_US)
        assert left.remaining == (80 if turns else 90)

    asyncio.run(ask())
    assert not store.lost


def test_a_counter_that_holds_something_else_hurts_only_its_own_request(
    store: RedisStore, redis7: Server
) -> None:
    rule, other = meter("spoilt", rpu=100), meter("spoilt too", rpu=100)
    redis7.ask("SADD", "diana:spoilt|TB|second|wrong", "somebody's")
    before = store.counts()

    async def ask() -> None:
        side = store.asynchronous
        keys = ["a", "wrong", "b", "c"]
        requests = [[Charge(other, key), Charge(rule, key)] for key in keys]
        answers = await asyncio.gather(*(side.decide(one, BEGIN_US) for one in requests))
        assert [any(one.degraded for one in answer) for answer in answers] == [
            key == "wrong" for key in keys
        ]
        assert all(map(all, answers))

    asyncio.run(ask())
    (alone,) = store.decide([Charge(rule, "wrong")], BEGIN_US)
    assert alone.degraded
    store.refund([Charge(rule, "wrong", 5)], BEGIN_US, BEGIN_US)
    store.refund([Charge(rule, "wrong", 5)], BEGIN_US, BEGIN_US)  # here there is nothing left
    # What was decided here is charged once, afterwards; that the script charged half of it would make two.
    until(lambda: not store.decider()._fallback.owes(), "all is settled")
    assert store.peek([Charge(other, "wrong", 0)], BEGIN_US)[0].remaining >= 99
    assert store.counts()["breaker_opened"] == before["breaker_opened"]
    assert not store.lost
    store.reset(rule, "wrong")
    assert not store.decide([Charge(rule, "wrong")], BEGIN_US)[0].degraded
