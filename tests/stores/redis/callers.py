"""Callers that never tire, in threads or in tasks, and what they were told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from threading import Event, Thread
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.decision import Decision
from diana.core.limit import limit_from_spelling
from diana.runtime.entry_points import algorithms
from diana.stores.redis.store import RedisStore
from tests.servers.awake import awake_seconds
from tests.servers.waiting import until

BUDGET = 0.3
PATIENT = 10.0
"""A budget for tests that are not about it, the largest there is: a machine that stands still shall not look like a lost store."""
MARGIN = 1.5
"""What a busy machine may add to a bound."""
BACK = 10.0
"""Seconds after which a store that is well again is asked again; it takes one or two, but who stands still sees it later."""
STALL = 1.5
"""An event loop that is later than this was held up by us: a busy machine alone does not do that."""
CALLERS = 8
PAUSE = 0.002
PLENTY = 10**9


class Told(NamedTuple):
    began: float
    """By the clock of those who are awake: for how long this process stood still is not the store's doing."""
    took: float
    decision: Decision


class Callers:
    """Each asks, waits a moment, and asks again. `told` is in the order of the answers."""

    def __init__(
        self, store: RedisStore, meter: CounterSpec, keys: list[str] | None = None
    ) -> None:
        self.store = store
        self.meter = meter
        self.keys = keys or ["k"]
        self.told: list[Told] = []
        self.errors: list[BaseException] = []
        self.longest_stall = 0.0
        """Of the event loop, if there is one: how much later than wanted a task was woken."""
        self._enough = Event()
        self._threads: list[Thread] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.passed_there()) > 20, "the callers are under way")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def since(self, moment: float) -> list[Told]:
        """What those were told who began later."""
        return [one for one in list(self.told) if one.began >= moment]

    def passed_here(self) -> list[Told]:
        return [one for one in list(self.told) if one.decision and one.decision.degraded]

    def passed_there(self) -> list[Told]:
        return [one for one in list(self.told) if one.decision and not one.decision.degraded]

    def until_degraded(self, count: int = 50) -> None:
        """So many have been decided here, from now on."""
        already = len(self.passed_here())
        until(lambda: len(self.passed_here()) >= already + count, "it is counted here")

    def until_global(self, within: float = 30.0) -> float:
        """Nobody is told anything degraded any more; gives how long that took."""
        began = awake_seconds()

        def all_global() -> bool:
            last = list(self.told)[-5 * CALLERS :]
            return all(one.began >= began and not one.decision.degraded for one in last)

        until(all_global, "it is counted globally again", within)
        return awake_seconds() - began

    def slowest(self, since: float = 0.0) -> float:
        return max(one.took for one in self.since(since))

    def usual(self, since: float) -> float:
        """How long most of those took who began later."""
        return median(one.took for one in self.since(since))

    def _tell(self, began: float, decision: Decision) -> None:
        self.told.append(Told(began, awake_seconds() - began, decision))


class InThreads(Callers):
    def __init__(
        self, store: RedisStore, meter: CounterSpec, keys: list[str] | None = None
    ) -> None:
        super().__init__(store, meter, keys)
        self._threads = [Thread(target=self._call, args=(number,)) for number in range(CALLERS)]

    def _call(self, number: int) -> None:
        key = self.keys[number % len(self.keys)]
        try:
            while not self._enough.wait(PAUSE):
                began = awake_seconds()
                self._tell(began, self.store.decide([(self.meter, key, 1)])[0])
        except BaseException as error:
            self.errors.append(error)


class InTasks(Callers):
    def __init__(
        self, store: RedisStore, meter: CounterSpec, keys: list[str] | None = None
    ) -> None:
        super().__init__(store, meter, keys)
        self._threads = [Thread(target=lambda: asyncio.run(self._run()))]

    async def _run(self) -> None:
        await asyncio.gather(self._watch(), *map(self._call, range(CALLERS)))

    async def _call(self, number: int) -> None:
        key = self.keys[number % len(self.keys)]
        try:
            while not self._enough.is_set():
                await asyncio.sleep(PAUSE)
                began = awake_seconds()
                told = await self.store.asynchronous.decide([(self.meter, key, 1)])
                self._tell(began, told[0])
        except BaseException as error:
            self.errors.append(error)

    async def _watch(self) -> None:
        while not self._enough.is_set():
            asleep = awake_seconds()
            await asyncio.sleep(PAUSE)
            stall = awake_seconds() - asleep - PAUSE
            self.longest_stall = max(self.longest_stall, stall)


SIDES = pytest.mark.parametrize("side", [InThreads, InTasks], ids=["threads", "tasks"])
Side = Callable[..., Callers]


@contextmanager
def opened(url: str, budget: float = BUDGET, **settings: Any) -> Iterator[RedisStore]:
    store = RedisStore.from_url(url, budget_us=int(budget * 1_000_000), **settings)
    try:
        yield store
    finally:
        store.close()


def window(rpu: int = PLENTY, name: str = "w", when_down: str = "local") -> CounterSpec:
    """A window of a day that begins with the first request: what is counted stays counted."""
    return meter("W", f"{rpu}/day", name, when_down, align="first")


def meter(
    code: str, spelling: str, name: str = "m", when_down: str = "local", **options: Any
) -> CounterSpec:
    limit = limit_from_spelling(spelling)
    return meter_from_limit(f"diana:{name}", limit, algorithms()[code], options, when_down)


def used(store: RedisStore, meter: CounterSpec, key: str = "k") -> int:
    """What the server counts."""
    seen: list[Decision] = []

    def is_told() -> bool:
        seen[:] = store.peek([(meter, key, 0)])
        return not seen[0].degraded

    until(is_told, "the server is asked")
    return seen[0].limit - seen[0].remaining


def until_asked(store: RedisStore, meter: CounterSpec, key: str = "k") -> None:
    """Until the server decides: a connection is free, and no circuit breaker is open. A peek is never answered from the deny cache."""

    def is_asked() -> bool:
        return not store.peek([(meter, key, 0)])[0].degraded and not store.lost

    until(is_asked, "the server is asked")


def changes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """`lost` and `back`, in the order in which it was said."""
    said = [record.getMessage() for record in caplog.records if record.name == "diana"]
    words = {"unreachable": "lost", "is back": "back"}
    return [short for text in said for long, short in words.items() if long in text]


def comes_and_goes(said: list[str]) -> bool:
    """It was lost and came back, once or, where the server stood still meanwhile, again; each was said once."""
    return said != [] and in_pairs(said)


def in_pairs(said: list[str]) -> bool:
    """It came back as often as it was lost, which may be never."""
    return said == ["lost", "back"] * (len(said) // 2)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All that is no change, and tells of a mistake of ours."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
