"""`make soak` (ARGS="--minutes 15 --seed 7"): random faults under a mixed load, and then the books must balance.

A window of a day per key counts everything that was ever charged. Each caller knows what it was told. At the end, for each key:

    told by the store  ≤  charged  ≤  told by the store + decided here

because what was decided here is charged once or (of unknown outcome, or lost on the way) not at all, and what was counted without a reply
is never charged again. A fault may add the requests that it caught between counting and replying: those are decided here as well, so the
bound holds. Memory, descriptors and threads must be flat.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from diana.core.counter import CounterSpec
from diana.stores.redis.store import RedisStore
from tests.servers import faults
from tests.servers.programs import REDIS_7
from tests.servers.proxy import FaultProxy
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import used, window

KEYS = [f"k{number}" for number in range(8)]
THREADS, TASKS = 6, 12
PAUSE = 0.002


class Books:
    """What the callers were told, by key."""

    def __init__(self) -> None:
        self.there: Counter[str] = Counter()
        self.here: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.slowest = 0.0
        self.asked = 0

    def note(self, key: str, allowed: bool, degraded: bool, took: float) -> None:
        self.asked += 1
        self.slowest = max(self.slowest, took)
        if allowed:
            (self.here if degraded else self.there)[key] += 1


class Load:
    def __init__(self, store: RedisStore, day: CounterSpec, seed: int) -> None:
        self.books = [Books() for _ in range(THREADS + 1)]
        self._store = store
        self._day = day
        self._enough = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(self.books[number], seed + number))
            for number in range(THREADS)
        ]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._run(seed))))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _call(self, books: Books, seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not self._enough.wait(PAUSE):
                key = chance.choice(KEYS)
                began = time.monotonic()
                (told,) = self._store.decide([(self._day, key, 1)])
                books.note(key, bool(told), told.degraded, time.monotonic() - began)
        except BaseException as error:
            books.errors.append(error)

    async def _run(self, seed: int) -> None:
        books = self.books[-1]

        async def call(number: int) -> None:
            chance = random.Random(seed * 100 + number)
            try:
                while not self._enough.is_set():
                    await asyncio.sleep(PAUSE)
                    key = chance.choice(KEYS)
                    began = time.monotonic()
                    (told,) = await self._store.asynchronous.decide([(self._day, key, 1)])
                    books.note(key, bool(told), told.degraded, time.monotonic() - began)
            except BaseException as error:
                books.errors.append(error)

        await asyncio.gather(*map(call, range(TASKS)))


def strikes(
    server: Server, proxy: FaultProxy, chance: random.Random
) -> dict[str, Callable[[], None]]:
    """Each lasts for a moment and leaves all as it was."""

    def for_a_moment(begin: Callable[[], None], end: Callable[[], None]) -> Callable[[], None]:
        def strike() -> None:
            begin()
            time.sleep(chance.uniform(0.02, 1.0))
            end()

        return strike

    def share(fault: faults.Fault) -> Callable[[], None]:
        return for_a_moment(
            lambda: proxy.sometimes(fault, 0.05, chance.randrange(1_000_000)), proxy.pass_on
        )

    def stop_ourselves() -> None:
        """A process that gets no processor, as a whole."""
        pid = os.fork()
        if pid == 0:
            parent = os.getppid()
            os.kill(parent, signal.SIGSTOP)
            time.sleep(chance.uniform(0.01, 0.3))
            os.kill(parent, signal.SIGCONT)
            os._exit(0)
        os.waitpid(pid, 0)

    return {
        "frozen": for_a_moment(server.freeze, server.thaw),
        "refused": for_a_moment(proxy.refuse, proxy.pass_on),
        "black hole": for_a_moment(proxy.black_hole, proxy.pass_on),
        "mute": for_a_moment(proxy.mute, proxy.pass_on),
        "late": for_a_moment(lambda: proxy.delay(0.2), proxy.pass_on),
        "garbage": for_a_moment(proxy.garbage, proxy.pass_on),
        "cut": proxy.cut,
        "some swallowed": share(faults.swallowing(reaches_server=True)),
        "some doubled": share(faults.doubling()),
        "some cut": share(faults.cutting()),
        "scripts flushed": lambda: server.ask("SCRIPT", "FLUSH"),
        "stopped ourselves": stop_ourselves,
    }


class Footprint:
    def __init__(self) -> None:
        self.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.descriptors = len(list(Path("/proc/self/fd").iterdir()))
        self.threads = threading.active_count()

    def __str__(self) -> str:
        return f"{self.memory // 1024} MiB, {self.descriptors} descriptors, {self.threads} threads"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    wanted = parser.parse_args()
    print(f"seed {wanted.seed}, {wanted.minutes:g} minutes", flush=True)
    sys.exit(0 if soak(wanted.minutes * 60, wanted.seed) else 1)


def soak(seconds: float, seed: int) -> bool:
    chance = random.Random(seed)
    day = window()
    struck: Counter[str] = Counter()
    with Server(REDIS_7) as server, FaultProxy(server.port) as proxy:
        store = RedisStore.from_url(proxy.url)
        load = Load(store, day, seed)
        load.start()
        until(lambda: load.books[0].asked > 100, "the load is on")
        before, end = Footprint(), time.monotonic() + seconds
        ways = strikes(server, proxy, chance)
        while time.monotonic() < end:
            name = chance.choice(sorted(ways))
            struck[name] += 1
            ways[name]()
            time.sleep(chance.uniform(0.2, 2.0))
        until(lambda: not store.lost, "the store is back", 60)
        load.stop()
        until(lambda: not store.decider()._fallback.owes(), "all is settled", 60)
        after = Footprint()
        fine = report(load, store, day, struck)
        print(f"before: {before}\nafter:  {after}")
        store.close()
    flat = after.descriptors <= before.descriptors + 10 and after.memory <= before.memory * 1.5
    print("flat" if flat else "NOT FLAT")
    return fine and flat


def report(load: Load, store: RedisStore, day: CounterSpec, struck: Counter[str]) -> bool:
    fine = True
    for key in KEYS:
        there = sum(books.there[key] for books in load.books)
        here = sum(books.here[key] for books in load.books)
        charged = used(store, day, key)
        balanced = there <= charged <= there + here
        fine &= balanced
        print(
            f"{key}: store {there}, here {here}, charged {charged}{'' if balanced else '  WRONG'}"
        )
    errors = [error for books in load.books for error in books.errors]
    slowest = max(books.slowest for books in load.books)
    asked = sum(books.asked for books in load.books)
    print(f"{asked} decisions, slowest {slowest * 1e3:.0f} ms, faults {dict(struck)}")
    print(f"counts {store.counts()}, errors {errors}")
    return fine and not errors


if __name__ == "__main__":
    main()
