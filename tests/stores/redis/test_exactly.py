"""On a server that is well exactly as many pass as may, however they are asked: many threads, many tasks, a fresh store or a warm one."""

from __future__ import annotations

import asyncio
from itertools import cycle, islice
from threading import Barrier, Thread
from typing import Any

import pytest

from diana.core.decision import Decision
from diana.stores.redis.store import RedisStore
from tests.servers.server import Server
from tests.stores.redis.callers import meter, opened, until_asked, window

ROUNDS = 20
"""Fewer where each asks more often: about as many decisions for all."""
LIMIT = 300
ASKED = 600
BUDGET = 5.0
"""Seconds: what 50 ms do is measured by the benchmarks."""
CODES = ("TB", "W", "SW", "SL", "LB")
SPELLING = f"{LIMIT}/day"


def places(code: str) -> dict[str, Any]:
    # A window that begins at midnight may end meanwhile.
    options: dict[str, dict[str, Any]] = {
        "LB": {"burst": LIMIT - 1, "nodelay": True},
        "W": {"align": "first"},
    }
    return options.get(code, {})


def in_threads(store: RedisStore, code: str, name: str, threads: int) -> list[Decision]:
    limit = meter(code, SPELLING, name, **places(code))
    told: list[Decision] = []
    gate = Barrier(threads)

    def push() -> None:
        gate.wait()
        for _ in range(max(1, ASKED // threads)):
            told.extend(store.decide([(limit, "k", 1)]))

    started = [Thread(target=push) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return told


def in_tasks(store: RedisStore, code: str, name: str, tasks: int) -> list[Decision]:
    limit = meter(code, SPELLING, name, **places(code))

    async def push() -> list[Decision]:
        each = max(1, ASKED // tasks)

        async def one() -> list[Decision]:
            return [(await store.asynchronous.decide([(limit, "k", 1)]))[0] for _ in range(each)]

        parts = await asyncio.gather(*(one() for _ in range(tasks)))
        return [decision for part in parts for decision in part]

    return asyncio.run(push())


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "warm"])
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("threads", 4),
        ("threads", 16),
        ("threads", 40),
        ("threads", 100),
        ("tasks", 200),
        ("tasks", 2_000),
    ],
)
def test_exactly_the_limit_passes(kind: str, number: int, warm: bool, redis7: Server) -> None:
    redis7.client().flushall()
    push = in_threads if kind == "threads" else in_tasks
    rounds = max(len(CODES), ROUNDS * ASKED // max(ASKED, number))
    for turn, code in enumerate(islice(cycle(CODES), rounds)):
        with opened(redis7.url, BUDGET) as store:
            if warm:
                until_asked(store, window(name="warm"))
            told = push(store, code, f"{kind} {number} {turn} {warm}", number)
            assert sum(decision.degraded for decision in told) == 0
            assert sum(map(bool, told)) == LIMIT, code


@pytest.mark.parametrize("code", ["TB", "SL"])
def test_ten_thousand_tasks_at_once_on_one_key(code: str, redis7: Server) -> None:
    with opened(redis7.url, BUDGET) as store:
        told = in_tasks(store, code, f"burst {code}", 10_000)
        assert sum(decision.degraded for decision in told) == 0
        assert sum(map(bool, told)) == LIMIT
