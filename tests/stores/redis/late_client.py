"""A process that asks a store for a while, in one way or another, and tells how that went. Run as a program."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from diana.core.limit import limit_from_spelling
from diana.core.meter import meter_from_limit
from diana.core.plugins import algorithms
from diana.stores.redis.store import RedisStore

CALLERS = 4
PAUSE = 0.002
LIMIT = meter_from_limit(
    "diana:late", limit_from_spelling("1000000000/day"), algorithms()["TB"], {}
)
BUSY = 8


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


def burn(enough: Any = None) -> None:
    while enough is None or not enough.is_set():
        sum(range(1_000))


@contextmanager
def busy(kind: str) -> Iterator[None]:
    """Company that leaves others little of the processor."""
    if kind == "busy threads":
        enough = threading.Event()
        threads = [threading.Thread(target=burn, args=(enough,)) for _ in range(BUSY)]
        for thread in threads:
            thread.start()
        yield
        enough.set()
        for thread in threads:
            thread.join()
    elif kind == "busy processes":
        processes = [multiprocessing.Process(target=burn, daemon=True) for _ in range(BUSY)]
        for process in processes:
            process.start()
        yield
        for process in processes:
            process.kill()
            process.join()
    else:
        yield


def main() -> None:
    url, way, company, seconds = sys.argv[1:]
    with busy(company):
        store = RedisStore.from_url(url)
        while store.decide([(LIMIT, "warm", 0)])[0].degraded:
            time.sleep(0.01)
        before = store.counts()
        print("ready", flush=True)
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
