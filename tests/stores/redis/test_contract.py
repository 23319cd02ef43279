"""What every store keeps, each server and a cluster keep: asked from threads, and from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, TypeVar

from diana.core.charge import Charges
from diana.core.contracts import Clock, Store, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.stores.redis.store import RedisStore
from diana.testing import store_contract
from tests.servers.cluster import Cluster
from tests.servers.server import Server
from tests.stores.redis.counting import PATIENT_US

T = TypeVar("T")


def store_at(url: str, flush: Callable[[], Any]) -> RedisStore:
    flush()
    return RedisStore.from_url(url, budget_us=PATIENT_US)


class FromTheLoop:
    """A store's asynchronous side, for callers that know no `await`."""

    shared = True

    def __init__(self, store: RedisStore, loop: asyncio.AbstractEventLoop) -> None:
        self._side = store.asynchronous
        self._loop = loop

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        take = self._side.bind(meter, clock)

        async def taken(key: str, cost: int) -> Decision:
            return await take(key, cost)

        return lambda key, cost=1: self._run(taken(key, cost))

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self._run(self._side.decide(charges, now))

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self._run(self._side.peek(charges, now))

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        self._run(self._side.refund(charges, at, now))

    def reset(self, meter: CounterSpec, key: str) -> None:
        self._run(self._side.reset(meter, key))

    def close(self) -> None:
        self._run(self._side.close())

    def _run(self, answer: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(answer, self._loop).result()


@contextmanager
def a_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_from_threads(any_server: Server) -> None:
    store_contract(
        lambda: store_at(any_server.url, lambda: any_server.ask("FLUSHALL")), examples=20
    )


def test_from_tasks(any_server: Server) -> None:
    with a_loop() as loop:

        def open_store() -> Store:
            return FromTheLoop(store_at(any_server.url, lambda: any_server.ask("FLUSHALL")), loop)

        store_contract(open_store, examples=20)


def test_in_a_cluster_from_threads(cluster: Cluster) -> None:
    store_contract(lambda: store_at(cluster.url, cluster.flush), examples=20)


def test_in_a_cluster_from_tasks(cluster: Cluster) -> None:
    with a_loop() as loop:

        def open_store() -> Store:
            return FromTheLoop(store_at(cluster.url, cluster.flush), loop)

        store_contract(open_store, examples=20)
