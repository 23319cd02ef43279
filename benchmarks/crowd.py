"""Many at once on one server: threads that share connections, bursts of tasks, and what a call costs the server.

Threads of Diana and of `limits` decide about different keys as fast as they are answered. Then 1,200 takes of 300 a day by threads that
begin together, on a fresh store and on a warm one, and bursts of tasks on one key, all with the ordinary budget of 50 ms: exactly 300
may pass, none degraded, and none waits for long. Of several rounds the least disturbed counts: a machine that stands still is not the
store's doing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from threading import Barrier, Thread
from time import perf_counter
from typing import NamedTuple

import limits
import limits.storage
import limits.strategies

from benchmarks.report import Figure, Section, at_least, at_most
from diana import AsyncLimiter, Limiter
from diana.stores.redis.store import RedisStore
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until

PLENTY = 1_000_000_000
LIMIT = 300
ASKED = 1_200
THREADS = (4, 16, 40)
BURSTS = (2_000, 10_000)
RATE_ROUNDS = 5
MOST_MS = 60.0
"""The budget and ten more."""


class Rush(NamedTuple):
    passed: int
    degraded: int
    slowest_ms: float


def run(quick: bool) -> Section:
    rounds = 2 if quick else 5
    with Server(REDIS_7) as server:
        server.ask("CONFIG", "SET", "slowlog-log-slower-than", 1_000)
        figures = [
            *_rates(server, RATE_ROUNDS),
            *_rushes(server, rounds),
            *_bursts(server, rounds),
        ]
        figures.append(_slow_calls(server, rounds))
    return Section(
        name="crowd",
        title="many at once",
        how=f"{', '.join(map(str, THREADS))} threads of one process; the best of {RATE_ROUNDS} rounds each. 1,200 takes of 300 a day "
        f"by threads that begin together, and bursts of tasks on one key, with a budget of 50 ms: the least disturbed of {rounds} rounds.",
        figures=figures,
        libraries=("diana-limiter", "limits", "redis", "hiredis"),
        quick=quick,
    )


def _rates(server: Server, rounds: int) -> Iterator[Figure]:
    store = RedisStore.from_url(server.url)
    limiter = Limiter(f"{PLENTY}/minute", store=store, name="rates")
    until(lambda: not limiter.take("warm").degraded, "the store is ready")
    fixed = limits.strategies.FixedWindowRateLimiter(limits.storage.RedisStorage(server.url))
    item = limits.parse(f"{PLENTY}/minute")
    takes: dict[str, Callable[[str], object]] = {
        "Diana": limiter.take,
        "limits": lambda key: fixed.hit(item, key),
    }
    best = {(name, number): 0.0 for name in takes for number in THREADS}
    for _ in range(rounds):
        for number in THREADS:
            for name, take in takes.items():
                best[name, number] = max(best[name, number], _rate(take, number))
    store.close()
    for number in THREADS:
        rate, other = best["Diana", number], best["limits", number]
        goals = [at_least(rate / other, 3, "× limits")]
        if number > THREADS[0]:
            goals.append(at_least(rate / best["Diana", THREADS[0]], 1, "× with 4"))
        ratios = {"× limits": rate / other, "× with 4": rate / best["Diana", THREADS[0]]}
        yield Figure(f"{number} threads", rate, "decisions/s", ratios, goals=tuple(goals))
        yield Figure(f"{number} threads, limits", other, "decisions/s")


def _rate(take: Callable[[str], object], number: int, asked: int = 4_000) -> float:
    gate = Barrier(number + 1)

    def push(thread: int) -> None:
        gate.wait()
        for turn in range(asked // number):
            take(f"{thread}:{turn}")

    threads = [Thread(target=push, args=(thread,)) for thread in range(number)]
    for thread in threads:
        thread.start()
    gate.wait()
    began = perf_counter()
    for thread in threads:
        thread.join()
    return asked / (perf_counter() - began)


def _rushes(server: Server, rounds: int) -> Iterator[Figure]:
    for warm in (False, True):
        for number in THREADS:
            rushes = [_rush(server, number, warm) for _ in range(rounds)]
            least = min(rushes, key=lambda rush: (rush.degraded, rush.slowest_ms))
            name = f"{number} threads at once, {'warm' if warm else 'fresh'}"
            yield from _figures(name, least)


def _figures(name: str, rush: Rush) -> Iterator[Figure]:
    goals = (at_most(rush.passed, LIMIT, "passed"), at_least(rush.passed, LIMIT, "passed"))
    yield Figure(name, rush.passed, "passed", note=f"{rush.degraded} degraded", goals=goals)
    goal = at_most(rush.slowest_ms, MOST_MS, "ms")
    yield Figure(f"{name}: slowest", rush.slowest_ms, "ms", goals=(goal,))


def _rush(server: Server, number: int, warm: bool) -> Rush:
    server.ask("FLUSHALL")
    store = RedisStore.from_url(server.url)
    limiter = Limiter(f"{LIMIT}/day", store=store, name="rush")
    if warm:
        until(lambda: not limiter.take("warm").degraded, "the store is ready")
    passed, degraded, slowest = [0] * number, [0] * number, [0.0] * number
    gate = Barrier(number)

    def push(thread: int) -> None:
        gate.wait()
        for _ in range(ASKED // number):
            began = perf_counter()
            decision = limiter.take("k")
            slowest[thread] = max(slowest[thread], perf_counter() - began)
            passed[thread] += bool(decision)
            degraded[thread] += decision.degraded

    threads = [Thread(target=push, args=(thread,)) for thread in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    return Rush(sum(passed), sum(degraded), max(slowest) * 1_000)


def _bursts(server: Server, rounds: int) -> Iterator[Figure]:
    for algo in ("TB", "SL"):
        for number in BURSTS:
            rushes = [asyncio.run(_burst(server, algo, number)) for _ in range(rounds)]
            least = min(rushes, key=lambda rush: rush.degraded)
            goal = at_most(least.passed, LIMIT, "passed")
            note = f"{least.degraded} degraded"
            name = f"{number:,} tasks at once on one key, {algo}"
            yield Figure(name, least.passed, "passed", note=note, goals=(goal,))


async def _burst(server: Server, algo: str, number: int) -> Rush:
    server.ask("FLUSHALL")
    limiter = AsyncLimiter(f"{LIMIT}/day", algo=algo, store=server.url, name="burst")
    while (await limiter.take("warm")).degraded:
        await asyncio.sleep(0.01)
    told = await asyncio.gather(*(limiter.take("k") for _ in range(number)))
    await limiter.close()
    return Rush(sum(map(bool, told)), sum(decision.degraded for decision in told), 0.0)


def _slow_calls(server: Server, rounds: int) -> Figure:
    """By the server's own statistics, over a round of all of the above."""
    fewest = None
    for _ in range(rounds):
        server.ask("SLOWLOG", "RESET")
        for algo in ("TB", "SL"):
            asyncio.run(_burst(server, algo, BURSTS[0]))
        _rush(server, THREADS[-1], warm=True)
        ran = [
            one for one in server.client().slowlog_get(1_000) if b"EVAL" in one["command"].upper()
        ]
        fewest = len(ran) if fewest is None else min(fewest, len(ran))
    slow = fewest or 0
    return Figure("script calls over 1 ms", slow, "", goals=(at_most(slow, 0, ""),))
