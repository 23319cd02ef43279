"""A store opened before a fork works in parent and child, each with a thread and sockets of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread, Timer
from threading import enumerate as living_threads
from time import monotonic
from typing import Any

import pytest

from diana import AsyncLimiter, Limiter
from diana.redis_client.handshake import open_connection
from diana.redis_client.redis_url import Endpoint
from diana.redis_client.reply_errors import Unreachable
from diana.stores.redis.maintenance.heartbeat import nodes_of_store
from diana.stores.redis.store import RedisStore
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import (
    CALLERS,
    PATIENT,
    InThreads,
    opened,
    until_asked,
    used,
    window,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_child(work: Callable[[], None]) -> int:
    """Run it in a forked child; gives the child's pid. It exits with 0 if nothing was raised or warned of."""
    pid = os.fork()
    if pid:
        return pid
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            work()
        gc.collect()
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)


def exit_code(pid: int) -> int:
    done: list[int] = []

    def ended() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            done.append(os.waitstatus_to_exitcode(status))
        return bool(found)

    until(ended, "the child has ended")
    return done[0]


def keepers() -> set[Thread]:
    """Those of earlier tests may end at any moment."""
    return {thread for thread in living_threads() if thread.name == "diana-keeper"}


def sockets() -> set[str]:
    """And pipes, and what is waited for them by; files are opened by others' threads at any moment."""
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    open_now = {os.readlink(link) for link in links if os.path.islink(link)}
    return {one for one in open_now if not one.startswith("/")}


def test_parent_and_children_count_together(redis7: Server) -> None:
    redis7.client().flushall()
    day = window()

    def work() -> None:
        began = monotonic()
        first = store.decide([(day, "k", 1)])[0]
        assert monotonic() - began < PATIENT
        assert not first.degraded
        assert len(keepers()) == 1
        told = [store.decide([(day, "k", 1)])[0] for _ in range(99)]
        assert not any(one.degraded for one in told)
        asyncio.run(in_loop())
        store.close()

    async def in_loop() -> None:
        assert not (await store.asynchronous.decide([(day, "k", 1)]))[0].degraded

    with opened(redis7.url, PATIENT) as store:
        until_asked(store, day)
        asyncio.run(in_loop())
        with InThreads(store, day) as callers:
            children = [in_child(work) for _ in range(4)]
            assert [exit_code(child) for child in children] == [0] * 4
        assert callers.errors == []
        passed = len(callers.passed_there())
        assert callers.passed_here() == []
        assert used(store, day) == 1 + passed + 4 * 101


def test_a_child_is_a_node_of_its_own(redis7: Server) -> None:
    redis7.client().flushall()
    before = sockets()

    def work() -> None:
        assert not sockets() & of_the_parent
        with ThreadPoolExecutor(CALLERS) as pool:
            list(pool.map(store.decide, [[(window(), "k", 1)]] * CALLERS))
        assert len(keepers()) == 1
        until(lambda: len(nodes_of_store(redis7.url)) == 2, "there are two")
        store.close()

    with opened(redis7.url, PATIENT) as store:
        until_asked(store, window())
        of_the_parent = {one for one in sockets() - before if one.startswith("socket:")}
        assert of_the_parent
        assert exit_code(in_child(work)) == 0
        assert [node.pid for node in nodes_of_store(redis7.url)] == [os.getpid()]


def test_a_child_has_no_socket_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    is_made, go_on = Event(), Event()

    class Slow(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            is_made.set()
            go_on.wait()

    def work() -> None:
        assert not sockets() & in_the_making

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as beside:
        before = sockets()
        endpoint = Endpoint(*server.getsockname())
        monkeypatch.setattr("diana.redis_client.handshake.socket.socket", Slow)
        opened = beside.submit(open_connection, endpoint, {}, seconds=60, login_seconds=0.1)
        assert is_made.wait(60)
        in_the_making = sockets() - before
        assert in_the_making
        Timer(0.2, go_on.set).start()
        assert exit_code(in_child(work)) == 0
        assert isinstance(opened.exception(), Unreachable)  # nobody answers


def test_a_child_has_no_socket_that_shakes_hands() -> None:
    def work() -> None:
        assert not sockets() & half_open

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as beside:
        before = sockets()
        endpoint = Endpoint(*server.getsockname())
        opened = beside.submit(
            open_connection, endpoint, {"tls": True, "ssl_cert_reqs": "none"}, seconds=60
        )
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(1)  # it waits for an answer now
            half_open = sockets() - before - {f"socket:[{os.fstat(accepted.fileno()).st_ino}]"}
            assert half_open
            assert exit_code(in_child(work)) == 0
        assert isinstance(opened.exception(), Unreachable)


def test_what_the_parent_owes_is_charged_by_the_parent_alone() -> None:
    day = window()

    def work() -> None:
        until_asked(store, day)
        until(lambda: not store.lost, "it is back")
        used(store, day)
        store.close()

    with Server(REDIS_7) as server, opened(server.url, PATIENT) as store:
        until_asked(store, day)
        server.kill()
        told = [store.decide([(day, "k", 1)])[0] for _ in range(10)]
        assert [one.degraded for one in told] == [True] * 10
        child = in_child(work)
        server.restart()
        assert exit_code(child) == 0
        until(lambda: store.counts()["settled"] == 10, "the parent has settled")
        assert used(store, day) == 10


def test_closing_leaves_nothing_behind(redis7: Server) -> None:
    day = window()
    threads, open_before = keepers(), sockets()
    store = RedisStore.from_url(redis7.url, budget_us=5_000_000)
    until_asked(store, day)
    asyncio.run(store.asynchronous.close())
    store.close()
    store.close()
    assert keepers() <= threads
    assert sockets() <= open_before
    # Who asks all the same is answered here, at once.
    began = monotonic()
    for _ in range(10):
        (told,) = store.decide([(day, "k", 1)])
        assert told
        assert told.degraded
        assert asyncio.run(store.asynchronous.decide([(day, "k", 1)]))[0].degraded
    assert monotonic() - began < 10 * store.budget


def test_closing_while_requests_run_hurts_nobody(redis7: Server) -> None:
    day = window()
    with opened(redis7.url, PATIENT) as store:
        until_asked(store, day)
        with InThreads(store, day) as callers:
            store.close()
            callers.until_degraded(CALLERS)
        assert callers.errors == []


def test_a_store_that_is_dropped_ends_its_thread(redis7: Server) -> None:
    threads, open_before = keepers(), sockets()
    store = RedisStore.from_url(redis7.url)
    until_asked(store, window())
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None
    until(lambda: keepers() <= threads, "its thread has ended")
    until(lambda: sockets() <= open_before, "its sockets are closed")


def test_one_limiter_serves_several_event_loops_in_a_row(redis7: Server) -> None:
    redis7.client().flushall()
    limiter = AsyncLimiter(
        "100/day", algo="W", align="first", store=f"{redis7.url}?budget=5s", name="loops"
    )

    async def take() -> bool:
        return not (await limiter.take("k")).degraded

    async def end() -> None:
        await limiter.close()

    # The first may come before the first connection is ready.
    until(lambda: asyncio.run(take()), "the server is asked")
    assert [asyncio.run(take()) for _ in range(5)] == [True] * 5
    asyncio.run(end())


def test_a_limiter_closes_the_store_that_it_opened(redis7: Server) -> None:
    threads = keepers()
    limiter = Limiter("100/day", store=redis7.url, name="own")
    limiter.take("k")
    limiter.close()
    limiter.close()
    assert keepers() <= threads
