"""Decisions through a real server on this machine: Diana, a bare script, and the libraries people use today.

One by one: a bare EVALSHA of a script that does no more than TIME, GET and SET is the least that a decision in a server can cost; then one
rule, then three rules in one request. Together: 64 and 256 tasks of one event loop ask as fast as they are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import count
from random import shuffle
from statistics import median
from time import perf_counter
from typing import Any

import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import redis
import throttled
import throttled.asyncio

from benchmarks.race import Contestant, Times, race
from benchmarks.report import Figure, Section, at_least, at_most
from diana import AsyncLimiter
from diana.core.counter import meter_from_limit
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.redis.protocol.scripts import scripts, wire_limit
from diana.stores.redis.store import RedisStore
from tests.servers.programs import REDIS_7
from tests.servers.server import Server

PER_MINUTE = 1_000_000
TASKS = {64: 5.0, 256: 8.0}
"""How many ask together, and how much faster than the best of the others that shall be."""
CONNECTIONS = 90
LENGTHS = (10, 1_000, 100_000)
LEAST = "local t = redis.call('TIME') redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], t[1]) return 1"

Ask = Callable[[str], Awaitable[bool]]


def run(quick: bool) -> Section:
    with Server(REDIS_7) as server:
        figures = [*_one_by_one(server, quick), *_together(server, quick)]
        figures += _long_logs(server, quick)
    return Section(
        name="fleet",
        title="decisions through a server",
        how=_how(quick),
        figures=figures,
        libraries=("diana-limiter", "limits", "throttled-py", "redis", "hiredis"),
        quick=quick,
    )


def _how(quick: bool) -> str:
    turn, rounds = _size(quick)
    return (
        f"Redis 7 on loopback, nothing on disk. One by one: {rounds} rounds of {turn} decisions, everything allowed. "
        f"Together: {' and '.join(map(str, TASKS))} tasks in one event loop, each asking again and again for keys never used before; "
        f"{_rounds_together(rounds)} rounds, decisions per second. "
        "Sliding log of n: one by one, with every request one of n entries expires and one is added. "
        "Each library as its documentation calls it, with redis-py and hiredis as transport."
    )


def _rounds_together(rounds: int) -> int:
    return max(7, rounds // 6)


def _size(quick: bool) -> tuple[int, int]:
    return (100, 10) if quick else (200, 60)


def _one_by_one(server: Server, quick: bool) -> list[Figure]:
    turn, rounds = _size(quick)
    client = redis.Redis(port=server.port)
    sha = client.script_load(LEAST)
    store = RedisStore.from_url(server.url)
    token_bucket = algorithms()["TB"]
    limit = Limit(PER_MINUTE, 60_000_000)
    meters = [meter_from_limit(f"diana:{name}", limit, token_bucket, {}) for name in "abc"]
    three_limits = [limits.parse(f"{PER_MINUTE}/{unit}") for unit in ("minute", "hour", "day")]
    storage = limits.storage.RedisStorage(server.url)
    fixed = limits.strategies.FixedWindowRateLimiter(storage)
    contestants = [
        Contestant("a bare script", lambda key: client.evalsha(sha, 1, key)),
        Contestant("Diana, one rule", lambda key: all(store.decide([(meters[0], key, 1)]))),
        Contestant(
            "Diana, three rules", lambda key: all(store.decide([(m, key, 1) for m in meters]))
        ),
        Contestant("limits, one rule", lambda key: fixed.hit(three_limits[0], key)),
        Contestant(
            "limits, three rules", lambda key: all(fixed.hit(one, key) for one in three_limits)
        ),
    ]
    fresh = (f"user:{number:016d}" for number in count())
    keys = [next(fresh) for _ in range(turn * (rounds + 1))]
    times = race(contestants, keys, turn=turn, rounds=rounds)
    store.close()
    client.close()
    return [_alone(one.name, times) for one in contestants]


def _alone(name: str, times: Times) -> Figure:
    ratios, goals = {"× a bare script": times.ratio(name)}, []
    if name == "Diana, one rule":
        goals = [at_most(ratios["× a bare script"], 1.1, "× a bare script")]
    if "three" in name:
        one = name.replace("three rules", "one rule")
        ratios["× one rule"] = times.ratio(name, to=one)
        if name.startswith("Diana"):
            goals = [at_most(ratios["× one rule"], 1.2, "× one rule")]
    return Figure(f"one by one, {name}", times.median_us(name), "µs", ratios, goals=tuple(goals))


def _long_logs(server: Server, quick: bool) -> list[Figure]:
    """A sliding log of so many entries, of which one expires with every request: through the store, and in the server alone."""
    turn, rounds = _size(quick)
    store = RedisStore.from_url(server.url, budget_us=2_000_000)
    client = redis.Redis(port=server.port)
    contestants = [Contestant(f"{n:,}", _long_log(store, client, n)) for n in LENGTHS]
    times = race(contestants, ["k"] * turn, turn=turn, rounds=rounds)
    figures = []
    for length, contestant in zip(LENGTHS, contestants, strict=True):
        ratio = times.ratio(contestant.name)
        goals = (at_most(ratio, 2, "× the shortest"),) if length == LENGTHS[-1] else ()
        what, value = f"sliding log of {length:,}", times.median_us(contestant.name)
        client.config_resetstat()
        for _ in range(turn):
            contestant.decide("k")
        there = client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]
        note = f"of it {there:.0f} µs in the server"
        figures.append(Figure(what, value, "µs", {"× the shortest": ratio}, note, goals))
    store.close()
    client.close()
    return figures


def _long_log(store: RedisStore, client: redis.Redis, length: int) -> Callable[[str], object]:
    """Written by a client of our own, all at once: by the clock of the request."""
    meter = meter_from_limit(
        f"diana:log {length}", Limit(LENGTHS[-1], length * 1_000_000), algorithms()["SL"], {}
    )
    seconds = count(1_700_000_000)
    script, limit = scripts()["acquire"], wire_limit(meter)
    sha = client.script_load(script.text)
    for _ in range(0, length, 1_000):
        pipeline = client.pipeline(transaction=False)
        for _ in range(min(length, 1_000)):
            now = next(seconds) * 1_000_000
            pipeline.evalsha(sha, 1, f"{meter.id}|k", now, "", "take", 1, limit, 1)  # type: ignore[arg-type]
        pipeline.execute()

    def take(key: str) -> object:
        return all(store.decide([(meter, key, 1)], next(seconds) * 1_000_000))

    return take


def _together(server: Server, quick: bool) -> list[Figure]:
    figures = []
    for tasks, least in TASKS.items():
        rates = asyncio.run(_rates(server, quick, tasks))
        others = [name for name in rates if not name.startswith("Diana")]
        best = rates[max(others, key=lambda name: median(rates[name]))]
        for name, rate in rates.items():
            # Within each round, where the machine was the same for both.
            ratio = median(mine / its for mine, its in zip(rate, best, strict=True))
            is_goal = name == "Diana, one rule"
            goals = (at_least(ratio, least, "× the best of the others"),) if is_goal else ()
            title = f"{tasks} tasks together, {name}"
            ratios = {"× the best of the others": ratio}
            figures.append(Figure(title, median(rate), "decisions/s", ratios, goals=goals))
    return figures


async def _rates(server: Server, quick: bool, tasks: int) -> dict[str, list[float]]:
    turn, rounds = _size(quick)
    limiter = AsyncLimiter(f"{PER_MINUTE}/minute", store=server.url, name="together")
    store = RedisStore.from_url(server.url)
    token_bucket = algorithms()["TB"]
    limit = Limit(PER_MINUTE, 60_000_000)
    meters = [meter_from_limit(f"diana:{name}", limit, token_bucket, {}) for name in "def"]

    async def three(key: str) -> bool:
        return all(await store.asynchronous.decide([(meter, key, 1) for meter in meters]))

    async def one(key: str) -> bool:
        return bool(await limiter.take(key))

    asked: dict[str, Ask] = {
        "Diana, one rule": one,
        "Diana, three rules": three,
        **_limits(server),
        **_throttled(server),
    }
    for name in [name for name in asked if not name.startswith("Diana")]:
        asked[name] = _with_few_connections(asked[name])
    numbers = count()
    rates: dict[str, list[float]] = {name: [] for name in asked}
    for name, ask in asked.items():
        await ask(f"warm {name}")
    order = list(asked)
    for _ in range(_rounds_together(rounds)):
        shuffle(order)
        for name in order:
            each = max(10, turn * 32 // tasks)
            rates[name].append(await _rate(asked[name], numbers, tasks, each))
    await limiter.close()
    await store.asynchronous.close()
    return rates


def _with_few_connections(ask: Ask) -> Ask:
    """A connection for each task that asks is what they do, and a hundred is what their pools hold."""
    places = asyncio.Semaphore(CONNECTIONS)

    async def ask_in_turn(key: str) -> bool:
        async with places:
            return await ask(key)

    return ask_in_turn


async def _rate(ask: Ask, numbers: count[int], tasks: int, each: int) -> float:
    async def push() -> None:
        for _ in range(each):
            if not await ask(f"user:{next(numbers):016d}"):
                raise AssertionError("everything should have passed")

    pushing: list[Coroutine[Any, Any, None]] = [push() for _ in range(tasks)]
    started = perf_counter()
    await asyncio.gather(*pushing)
    return tasks * each / (perf_counter() - started)


def _limits(server: Server) -> dict[str, Ask]:
    storage = limits.aio.storage.RedisStorage(f"async+{server.url}", implementation="redispy")
    fixed = limits.aio.strategies.FixedWindowRateLimiter(storage)
    return {"limits, fixed window": partial(fixed.hit, limits.parse(f"{PER_MINUTE}/minute"))}


def _throttled(server: Server) -> dict[str, Ask]:
    store = throttled.asyncio.RedisStore(server=server.url)
    found: dict[str, Ask] = {}
    for algorithm in ("token_bucket", "fixed_window"):
        quota = throttled.per_min(PER_MINUTE)
        limiter = throttled.asyncio.Throttled(using=algorithm, quota=quota, store=store)
        found[f"throttled-py, {algorithm.replace('_', ' ')}"] = _passing(limiter)
    return found


def _passing(limiter: throttled.asyncio.Throttled) -> Ask:
    async def ask(key: str) -> bool:
        return not (await limiter.limit(key)).limited

    return ask
