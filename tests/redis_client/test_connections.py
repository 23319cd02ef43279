"""Connections: one that cannot be opened hurts no request that has one, a burst's are closed again, and loops share them."""

from __future__ import annotations

import asyncio
import logging
import socket
from math import inf
from pathlib import Path
from threading import Barrier, Thread

import pytest

from diana import AsyncLimiter
from diana.core.decision import Decision
from diana.redis_client import handshake as opening
from diana.redis_client.connection import Connection
from diana.redis_client.connection_pool import ConnectionPool
from diana.redis_client.time_budget import Budget
from diana.stores.redis.protocol.commands import command, pack
from diana.stores.redis.store import RedisStore
from tests.servers.certificates import Certificates
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import InThreads, meter, opened, until_asked, window

PATIENT = 5.0


def test_at_maxclients_what_is_connected_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    day = window()
    with Server(REDIS_7) as server, opened(server.url, PATIENT) as store:
        until_asked(store, day)
        operator = server.client()
        operator.config_set("maxclients", len(operator.client_list()))
        # A loop wants a connection of its own, and there is none to be had.
        with caplog.at_level(logging.WARNING, "diana"), InThreads(store, day) as callers:
            tried = len(callers.told)
            until(lambda: len(callers.told) > tried + 500, "it goes on")
        assert callers.errors == []
        assert callers.passed_here() == []
        assert store.counts()["breaker_opened"] == 0
        assert len(caplog.records) <= 20
        operator.close()


def test_what_is_said_of_a_flapping_store_is_bounded(
    caplog: pytest.LogCaptureFixture, redis7: Server
) -> None:
    with opened(redis7.url, PATIENT) as store:
        until_asked(store, window())
        breaker = store._keeper.topology.servers[0].breaker  # type: ignore[union-attr]
        with caplog.at_level(logging.WARNING, "diana"):
            for _ in range(200):
                breaker.open(OSError("flapping"))
                breaker.close()
        assert len(caplog.records) == 20


def test_threads_need_few_connections(redis7: Server) -> None:
    limit = meter("TB", "1000000000/day", "few")
    with opened(redis7.url, PATIENT) as store:
        until_asked(store, limit)

        def push() -> None:
            for number in range(20):
                assert not store.decide([(limit, str(number), 1)])[0].degraded

        threads = [Thread(target=push) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        named = [one for one in redis7.client().client_list() if one["name"] == "diana"]
        # Two for threads, and each background thread's own.
        assert len(named) <= 4


def test_a_loop_for_each_request_needs_no_connection_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Flask's asynchronous views do it; with TLS, where a handshake takes milliseconds."""
    certificates = Certificates.make(tmp_path)
    made: list[int] = []
    connect = opening._connect

    def counting(*arguments: object) -> object:
        made.append(1)
        return connect(*arguments)  # type: ignore[arg-type]

    with Server(REDIS_7, certificates=certificates) as server:
        trusted = f"ssl_ca_certs={certificates.certificate('authority')}"
        limiter = AsyncLimiter(
            "1000000/day", store=f"{server.url}?{trusted}&budget=5s", name="loops"
        )

        async def take() -> Decision:
            return await limiter.take("k")

        until(lambda: not asyncio.run(take()).degraded, "it is asked")
        monkeypatch.setattr(opening, "_connect", counting)
        told: list[Decision] = []

        def view() -> None:
            told.extend(asyncio.run(take()) for _ in range(50))

        threads = [Thread(target=view) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not any(decision.degraded for decision in told)
        assert len(made) <= 5
        asyncio.run(limiter.close())


def test_the_first_request_of_each_of_many_loops_is_decided_by_the_server(redis7: Server) -> None:
    """Sixteen threads with loops of their own, all at once, again and again: connections are taken over or opened within the budget.

    A machine that stands still for longer than the budget degrades decisions too, so one of three runs has to be without.
    """
    with opened(redis7.url) as store:
        until_asked(store, window())
        degraded = [_degraded_first_requests(store, rounds=20, loops=16) for _ in range(3)]
        assert min(degraded) == 0


def _degraded_first_requests(store: RedisStore, rounds: int, loops: int) -> int:
    barrier = Barrier(loops)
    told: list[Decision] = []

    async def take() -> Decision:
        barrier.wait()
        return (await store.asynchronous.decide([(window(), "k", 1)]))[0]

    def work() -> None:
        told.extend(asyncio.run(take()) for _ in range(rounds))

    threads = [Thread(target=work) for _ in range(loops)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == rounds * loops
    return sum(decision.degraded for decision in told)


def test_the_certificates_are_read_once(tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path)
    with Server(REDIS_7, certificates=certificates) as server:
        trusted = f"ssl_ca_certs={certificates.certificate('authority')}"
        opening._tls_context.cache_clear()
        with opened(f"{server.url}?{trusted}", PATIENT) as store:
            until_asked(store, window())
        assert opening._tls_context.cache_info().misses == 1


def test_a_command_larger_than_the_socket_holds_is_sent_whole() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    connection = Connection(ours, lambda _: None)
    words = ("ECHO", b"x" * 1_000_000)
    received = bytearray()

    def answer() -> None:
        while len(received) < len(pack(words)):
            received.extend(theirs.recv(1 << 16))
        theirs.sendall(b"+OK\r\n")

    answering = Thread(target=answer)
    answering.start()
    assert connection.exchange(command(*words), Budget(PATIENT)) == b"OK"
    answering.join()
    assert bytes(received) == pack(words)
    assert ours.gettimeout() == 0, "it is waited for by poll again"
    connection.close()
    theirs.close()


def test_a_connection_that_was_just_used_is_dropped_if_more_came_than_was_asked_for() -> None:
    ours, theirs = socket.socketpair()
    pool = ConnectionPool(PATIENT)
    pool.add(Connection(ours, lambda _: None))
    connection = pool.take()
    assert connection is not None
    theirs.sendall(b"+OK\r\n+AGAIN\r\n")
    assert connection.exchange(command("PING"), Budget(PATIENT)) == b"OK"
    pool.give(connection)
    connection.idle_since = inf  # as fresh as can be, however long this thread stood still
    assert pool.take() is None
    theirs.close()
