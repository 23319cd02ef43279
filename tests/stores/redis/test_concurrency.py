"""However many push at once, from tasks, threads and processes: exactly as many pass as may."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from diana.core.charge import Charge
from diana.stores.redis.store import RedisStore
from tests.servers.server import Server
from tests.stores.redis.counting import BEGIN_US, counters, opened
from tests.stores.redis.pushing import ALGORITHMS, narrow, push_from_another_process, pushed


@pytest.fixture(scope="module")
def store(redis7: Server) -> Iterator[RedisStore]:
    with opened(redis7.url, budget_us=10_000_000) as store:
        yield store


@pytest.mark.parametrize("code", ALGORITHMS)
def test_200_tasks(code: str, store: RedisStore) -> None:
    meter = narrow("tasks", code)

    async def push() -> int:
        side = store.asynchronous
        asking = (side.decide([Charge(meter, "k")], BEGIN_US) for _ in range(200))
        decisions = [decision for (decision,) in await asyncio.gather(*asking)]
        assert not any(decision.degraded for decision in decisions)
        return sum(map(bool, decisions))

    assert asyncio.run(push()) == 40


@pytest.mark.parametrize("code", ALGORITHMS)
def test_16_threads(code: str, store: RedisStore) -> None:
    with ThreadPoolExecutor(16) as pool:
        parts = list(pool.map(lambda _: pushed(store, "threads", code, 10), range(16)))
    assert min(parts) >= 0
    assert sum(parts) == 40


@pytest.mark.parametrize("how", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_4_processes(how: str, store: RedisStore, redis7: Server) -> None:
    context: Any = multiprocessing.get_context(how)
    where = store if how == "fork" else redis7.url
    started = []
    for _ in range(4):
        here, there = context.Pipe(duplex=False)
        process = context.Process(
            target=push_from_another_process, args=(where, f"processes {how}", 20, there)
        )
        process.start()
        started.append((process, here))
    answers = []
    for process, here in started:
        assert here.poll(60), "a process says nothing"
        answers.append(here.recv())
        process.join(60)
        assert process.exitcode == 0
    for code in ALGORITHMS:
        parts = [answer[code] for answer in answers]
        assert min(parts) >= 0, f"{code} was decided without the store"
        assert sum(parts) == 40, code


@pytest.mark.parametrize("code", ALGORITHMS)
def test_who_is_denied_changes_no_key(code: str, redis7: Server) -> None:
    meter = narrow("denied", code)
    with opened(redis7.url) as store:
        assert pushed(store, "denied", code, 60) == 40
    before = counters(redis7)
    with opened(redis7.url) as fresh:  # it remembers no denial, so the server is asked
        beside = [Charge(narrow("beside", code), "k"), Charge(meter, "k")]
        for charges in ([Charge(meter, "k")], [Charge(meter, "k", 2)], beside):
            decisions = fresh.decide(charges, BEGIN_US)
            assert not all(decisions)
            assert not any(decision.degraded for decision in decisions)
        assert fresh.counts()["trips"] > 0
    assert counters(redis7) == before
