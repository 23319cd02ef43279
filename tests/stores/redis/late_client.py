"""A process that asks a store for a while, in one way or another, and tells how that went. Run as a program."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from diana.core.counter import meter_from_limit
from diana.core.limit import limit_from_spelling
from diana.runtime.entry_points import algorithms
from diana.stores.redis.store import RedisStore

CALLERS = 4
PAUSE = 0.002
LIMIT = meter_from_limit(
    "diana:late", limit_from_spelling("1000000000/day"), algorithms()["TB"], {}
)
BUSY = 8
"""Threads or processes that want all of the processor."""


class Tally:
    def __init__(self) -> None:
        self.asked = 0
        self.degraded = 0
        self.slowest = 0.0

    def add(self, took: float, degraded: bool) -> None:
        self.asked += 1
        self.degraded += degraded
        self.slowest = max(self.slowest, took)


def in_threads(store: RedisStore, until: float, ask: Callable[[RedisStore, str], bool]) -> Tally:
    tally = Tally()

    def call(number: int) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            degraded = ask(store, f"k{number}")
            tally.add(time.monotonic() - began, degraded)
            time.sleep(PAUSE)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def in_tasks(store: RedisStore, until: float) -> Tally:
    tally = Tally()

    async def call(number: int) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            (decision,) = await store.asynchronous.decide([(LIMIT, f"k{number}", 1)])
            tally.add(time.monotonic() - began, decision.degraded)
            await asyncio.sleep(PAUSE)

    async def run() -> None:
        await asyncio.gather(*map(call, range(CALLERS)))

    asyncio.run(run())
    return tally


def take(store: RedisStore, key: str) -> bool:
    return store.decide([(LIMIT, key, 1)])[0].degraded


def peek(store: RedisStore, key: str) -> bool:
    return store.peek([(LIMIT, key, 1)])[0].degraded


def refund(store: RedisStore, key: str) -> bool:
    """Whether what was charged stays charged although it was given back."""
    (decision,) = store.decide([(LIMIT, key, 1)])
    if decision.degraded:
        return True
    store.refund([(LIMIT, key, 1)], decision.at)
    return False


WAYS: dict[str, Callable[[RedisStore, float], Tally]] = {
    "threads": lambda store, until: in_threads(store, until, take),
    "tasks": in_tasks,
    "peek": lambda store, until: in_threads(store, until, peek),
    "refund": lambda store, until: in_threads(store, until, refund),
}


@contextmanager
def busy_threads(count: int) -> Iterator[None]:
    """Company in this very process that leaves others little of the processor."""
    enough = threading.Event()

    def burn() -> None:
        while not enough.is_set():
            sum(range(1_000))

    threads = [threading.Thread(target=burn) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    enough.set()
    for thread in threads:
        thread.join()


def main() -> None:
    url, way, company, seconds = sys.argv[1:]
    # What is not measured is done without company, which would only make it slow.
    store = RedisStore.from_url(url)
    while store.decide([(LIMIT, "warm", 0)])[0].degraded:
        time.sleep(0.01)
    print("ready", flush=True)
    sys.stdin.readline()
    with busy_threads(BUSY if company == "busy threads" else 0):
        before = store.counts()
        tally = WAYS[way](store, time.monotonic() + float(seconds))
        counts = store.counts()
    store.close()
    told = {
        "asked": tally.asked,
        "degraded": tally.degraded,
        "slowest": tally.slowest,
        "lost": counts["breaker_opened"] - before["breaker_opened"],
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
