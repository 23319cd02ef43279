"""A server that is frozen under load holds nobody longer than the budget, and writes nothing late."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from diana.core.decision import Decision
from diana.stores.redis.store import RedisStore
from tests.servers.awake import awake_seconds
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import (
    BACK,
    BUDGET,
    CALLERS,
    MARGIN,
    PATIENT,
    SIDES,
    STALL,
    Side,
    changes,
    comes_and_goes,
    opened,
    until_asked,
    used,
    window,
)


@SIDES
def test_who_is_caught_waits_for_the_budget_and_later_ones_do_not_wait(
    side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    day = window()
    with Server(REDIS_7) as server, opened(server.url) as store:
        with side(store, day) as callers:
            server.freeze()
            until(lambda: store.lost, "the breaker is open")
            alone = awake_seconds()
            callers.until_degraded()
            usual_alone = callers.usual(alone)
            server.thaw()
            took = callers.until_global()
        assert callers.errors == []
        assert callers.slowest() < BUDGET + MARGIN
        assert usual_alone < BUDGET / 3
        assert callers.longest_stall < STALL
        assert took < BACK
        until(lambda: comes_and_goes(changes(caplog)), "that it is back is said, too")
        passed_there, passed_here = len(callers.passed_there()), len(callers.passed_here())
        # What was sent and not answered may have been counted there, so it is not charged again; all else is, once.
        until(lambda: not store.decider()._fallback.owes(), "nothing is owed")
        until(lambda: 0 < store.counts()["settled"] <= passed_here, "what is owed is charged")
        settled = store.counts()["settled"]
        assert 0 <= used(store, day) - passed_there - settled <= passed_here - settled


@pytest.mark.parametrize("ask", ["threads", "tasks"])
def test_a_command_under_way_writes_nothing_late(ask: str) -> None:
    day = window(when_down="open")

    async def in_tasks(store: RedisStore, server: Server) -> list[list[Decision]]:
        decide = store.asynchronous.decide
        before = await asyncio.gather(*(decide([(day, "k", 1)]) for _ in range(CALLERS)))
        server.freeze()
        return before + await asyncio.gather(*(decide([(day, "k", 1)]) for _ in range(CALLERS)))

    def in_threads(store: RedisStore, server: Server) -> list[list[Decision]]:
        with ThreadPoolExecutor(CALLERS) as pool:
            before = list(pool.map(store.decide, [[(day, "k", 1)]] * CALLERS))
            server.freeze()
            return before + list(pool.map(store.decide, [[(day, "k", 1)]] * CALLERS))

    with Server(REDIS_7) as server, opened(server.url, 3.0) as store:
        until_asked(store, day)
        told = asyncio.run(in_tasks(store, server)) if ask == "tasks" else in_threads(store, server)
        server.thaw()
        assert [one.degraded for (one,) in told] == [False] * CALLERS + [True] * CALLERS
        until(lambda: not store.lost, "it is back")
        assert used(store, day) == CALLERS


def test_the_very_first_command_writes_nothing_late() -> None:
    day = window(when_down="open")
    with Server(REDIS_7) as server, opened(server.url) as store:
        until(lambda: server.ask("EXISTS", "diana:script:acquire"), "there is a connection")
        server.freeze()
        (told,) = store.decide([(day, "k", 1)])
        assert told.degraded
        server.thaw()
        until(lambda: not store.lost, "it is back")
        assert used(store, day) == 0


def test_a_server_that_stands_still_when_the_store_is_opened_has_the_whole_budget() -> None:
    """Opening a connection may take as long as a request may wait for it."""
    day = window()
    with Server(REDIS_7) as server, ThreadPoolExecutor(1) as pool:
        server.freeze()
        with opened(server.url, PATIENT) as store:
            asking = pool.submit(store.decide, [(day, "k", 1)])
            Event().wait(1.5)
            server.thaw()
            assert not asking.result()[0].degraded
            assert store.counts()["breaker_opened"] == 0
