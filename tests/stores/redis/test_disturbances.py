"""What operators and full memories do to a server under load: nobody sees an error, and the count goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import (
    BACK,
    BUDGET,
    MARGIN,
    PATIENT,
    SIDES,
    InThreads,
    Side,
    changes,
    comes_and_goes,
    complaints,
    in_pairs,
    opened,
    until_asked,
    used,
    window,
)

UNNOTICED: dict[str, Callable[[Server], object]] = {
    "SCRIPT FLUSH": lambda server: server.ask("SCRIPT", "FLUSH"),
    "FLUSHALL": lambda server: server.ask("FLUSHALL"),
    "SCRIPT FLUSH and FLUSHALL": lambda server: (
        server.client().flushall() and server.ask("SCRIPT", "FLUSH")
    ),
}
NOTICED: dict[str, Callable[[Server], object]] = {
    "a restart": Server.restart,
    "CLIENT KILL": lambda server: server.ask("CLIENT", "KILL", "TYPE", "normal"),
}


@SIDES
@pytest.mark.parametrize("what", UNNOTICED)
def test_the_count_goes_on_at_once_after(
    what: str, side: Side, redis7: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(redis7.url, PATIENT) as store:
        until_asked(store, window())
        with side(store, window()) as callers:
            for _ in range(3):
                UNNOTICED[what](redis7)
                asked = len(callers.told)
                until(lambda asked=asked: len(callers.told) > asked + 50, "it goes on")  # type: ignore[misc]
        assert callers.errors == []
        assert callers.passed_here() == []
        assert changes(caplog) == []
        published = lambda: redis7.ask("EXISTS", "diana:script:acquire")  # noqa: E731
        until(published, "what others look up is published again")


@SIDES
@pytest.mark.parametrize("what", NOTICED)
def test_the_count_comes_back_after(
    what: str, side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(REDIS_7) as server, opened(server.url) as store:
        until_asked(store, window())
        with side(store, window()) as callers:
            for _ in range(2):
                NOTICED[what](server)
                callers.until_global()
        assert callers.errors == []
        assert callers.slowest() < BUDGET + MARGIN
        # Several who are cut off at once may notice one after the other, with a way back in between.
        until(lambda: in_pairs(changes(caplog)), "after each loss that it is back is said")
        said = changes(caplog)
        assert complaints(caplog) == []
        counts = store.counts()
        assert counts["breaker_opened"] == counts["breaker_closed"] == len(said) // 2


@SIDES
def test_a_full_memory_is_a_loss_until_there_is_room(
    side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers all the time, so with a budget of seconds nothing is late, and all is known."""
    with (
        Server(REDIS_7, "--maxmemory-policy", "noeviction") as server,
        opened(server.url, PATIENT) as store,
    ):
        until_asked(store, window())
        with side(store, window()) as callers:
            server.ask("CONFIG", "SET", "maxmemory", "1mb")
            callers.until_degraded()
            server.ask("CONFIG", "SET", "maxmemory", "0")
            assert callers.until_global() < BACK
        assert callers.errors == []
        assert callers.slowest() < PATIENT + MARGIN
        until(lambda: comes_and_goes(changes(caplog)), "that it is back is said, too")
        passed = len(callers.passed_there()) + len(callers.passed_here())
        until(lambda: used(store, window()) == passed, "all is counted, once")


def test_evicted_counters_start_anew_and_the_danger_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = [f"{number} {'x' * 400}" for number in range(64)]
    memory = ("--maxmemory-policy", "allkeys-lru", "--maxmemory", "3mb")
    with Server(REDIS_7, *memory) as server, opened(server.url) as store:
        until_asked(store, window())
        with InThreads(store, window(), keys) as callers:
            fill(server)
            callers.until_global()
            server.ask("CLIENT", "KILL", "TYPE", "normal")
            callers.until_global()
        assert callers.errors == []
        assert server.client().info("stats")["evicted_keys"] > 0
        until(lambda: "allkeys-lru" in caplog.text, "the danger is said")
    said = [one.getMessage() for one in caplog.records if "allkeys-lru" in one.getMessage()]
    assert len(said) == 1


def fill(server: Server) -> None:
    with server.client().pipeline(transaction=False) as pipe:
        for number in range(3_000):
            pipe.set(f"filling {number}", "x" * 2_000)
        pipe.execute()
