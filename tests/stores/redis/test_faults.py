"""Whatever the network does to answers: nobody waits longer than the budget, nobody sees an error, and it comes back."""

from __future__ import annotations

import socket
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from tests.servers.awake import awake_seconds
from tests.servers.proxy import FaultProxy
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import (
    BACK,
    BUDGET,
    MARGIN,
    SIDES,
    STALL,
    Side,
    changes,
    comes_and_goes,
    complaints,
    opened,
    window,
)

FAULTS: dict[str, Callable[[FaultProxy], None]] = {
    "refuses": FaultProxy.refuse,
    "is a black hole": FaultProxy.black_hole,
    "acts and never answers": FaultProxy.mute,
    "answers too late": lambda proxy: proxy.delay(5),
    "drips": lambda proxy: proxy.drip(0.05),
    "says half": FaultProxy.half_reply,
    "says what is no protocol": FaultProxy.garbage,
    "says a number": lambda proxy: proxy.garbage(b":1\r\n"),
    "says a word": lambda proxy: proxy.garbage(b"+PONG\r\n"),
    "says nothing": lambda proxy: proxy.garbage(b"$-1\r\n"),
    "says an empty list": lambda proxy: proxy.garbage(b"*0\r\n"),
    "says a short list": lambda proxy: proxy.garbage(b"*2\r\n:1\r\n*1\r\n:1\r\n"),
    "says too much": lambda proxy: proxy.garbage(b":1\r\n" * 100),
    "is loading": lambda proxy: proxy.garbage(b"-LOADING the dataset is in memory soon\r\n"),
}


@SIDES
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that(
    fault: str, side: Side, proxy: FaultProxy, redis7: Server, caplog: pytest.LogCaptureFixture
) -> None:
    redis7.client().flushall()
    day = window()
    with opened(proxy.url) as store:
        with side(store, day) as callers:
            FAULTS[fault](proxy)
            until(lambda: store.lost, "the breaker is open")
            alone = awake_seconds()
            callers.until_degraded()
            usual_alone = callers.usual(alone)
            proxy.pass_on()
            took = callers.until_global()
        assert callers.errors == []
        assert callers.slowest() < BUDGET + MARGIN
        assert usual_alone < BUDGET / 3
        assert callers.longest_stall < STALL
        assert took < BACK
        until(lambda: comes_and_goes(changes(caplog)), "that it is back is said, too")
        assert complaints(caplog) == []


@SIDES
def test_a_server_of_which_no_connection_is_left_and_that_says_half(
    side: Side, proxy: FaultProxy
) -> None:
    """It is heard each time one is to be opened, but never enough: nobody may wait for that with each request."""
    day = window()
    with opened(proxy.url) as store:
        with side(store, day) as callers:
            proxy.half_reply()
            proxy.cut()
            until(lambda: store.lost, "the breaker is open")
            proxy.pass_on()
            callers.until_global()
        assert callers.errors == []


@SIDES
def test_a_store_that_is_out_of_reach_from_the_start(
    side: Side, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refuse()
    day = window()
    with opened(proxy.url) as store:
        (told,) = store.decide([(day, "k", 1)])
        assert told
        assert told.degraded
        until(lambda: store.lost, "the breaker is open")
        proxy.pass_on()
        with side(store, day) as callers:
            callers.until_global()
        until(lambda: comes_and_goes(changes(caplog)), "that it is back is said, too")


@SIDES
def test_slow_names_hold_nobody(
    side: Side, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = socket.getaddrinfo
    answers = Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        answers.wait(60)
        return found(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    day = window()
    with opened(proxy.url, BUDGET) as store:
        began = awake_seconds()
        told = [store.decide([(day, "k", 1)])[0] for _ in range(50)]
        # Who comes first finds out. If all did, it would take 50 budgets.
        assert awake_seconds() - began < 20 * BUDGET
        assert all(one.degraded for one in told)
        answers.set()
        with side(store, day) as callers:
            callers.until_global()
        assert callers.errors == []


@pytest.mark.parametrize("kind", ["redis+sentinel", "redis+cluster"])
def test_a_store_that_cannot_be_found_holds_only_the_first(kind: str, proxy: FaultProxy) -> None:
    proxy.black_hole()
    service = "/limits" if kind == "redis+sentinel" else ""
    with opened(proxy.url.replace("redis", kind) + service, BUDGET) as store:
        began = awake_seconds()
        told = [store.decide([(window(), "k", 1)])[0] for _ in range(50)]
        assert awake_seconds() - began < 20 * BUDGET, "as long as twenty of fifty budgets"
        assert all(one.degraded for one in told)
