"""Waiting: exactly as long as needed, first come first served, nobody else delayed."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from math import inf, nan
from threading import Event, Thread

import pytest

from diana import AsyncLimiter, DianaError, Limiter
from diana.slots.wait_queue import TaskTicket, ThreadTicket, WaitQueues
from diana.testing import FakeClock

BEGIN_US = 1_700_000_000_000_000


def test_it_wakes_exactly_when_due() -> None:
    clock = FakeClock(BEGIN_US)
    limiter = Limiter("3/second", burst=1, clock=clock)
    moments = [limiter.wait("k").at - BEGIN_US for _ in range(4)]
    assert moments == [0, 333_334, 666_668, 1_000_002]


def test_past_the_timeout_it_returns_the_denial_without_sleeping() -> None:
    clock = FakeClock(BEGIN_US)
    limiter = Limiter("1/second", clock=clock)
    assert limiter.wait("k", timeout=0)
    denied = limiter.wait("k", timeout=0.999999)
    assert not denied
    assert denied.retry_after == 1.0
    assert clock() == BEGIN_US
    assert limiter.wait("k", timeout=1).at == BEGIN_US + 1_000_000


def test_what_can_never_pass_is_not_waited_for() -> None:
    limiter = Limiter("5/second", clock=FakeClock())
    assert limiter.wait("k", 6).retry_after is None


def test_a_leaky_buckets_delay_is_slept_off() -> None:
    clock = FakeClock(BEGIN_US)
    limiter = Limiter("10/second", algo="LB", burst=2, clock=clock)
    for released in (0, 100_000, 200_000):
        assert limiter.wait("k")
        assert clock() == BEGIN_US + released


def test_a_delay_past_the_timeout_is_a_denial_and_gives_the_place_back() -> None:
    clock = FakeClock(BEGIN_US)
    limiter = Limiter("10/second", algo="LB", burst=5, clock=clock)
    for _ in range(3):
        limiter.take("k")
    room = limiter.peek("k").remaining
    denied = limiter.wait("k", timeout=0.2)
    assert not denied
    assert denied.retry_after == pytest.approx(0.1)
    assert denied.delay == 0
    assert (denied.remaining, denied.reset_after) == (room + 1, 0.3)
    assert (clock(), limiter.peek("k").remaining) == (BEGIN_US, room)
    clock.advance(0.1)
    assert limiter.wait("k", timeout=0.2)


@pytest.mark.parametrize("timeout", [-1, nan, True, "1"])
def test_a_timeout_that_is_no_time_is_an_error(timeout: float) -> None:
    with pytest.raises(DianaError, match="write seconds from 0, or None"):
        Limiter("1/second").wait("k", timeout=timeout)


class GatedClock(FakeClock):
    """A clock whose sleepers wait for the test: real threads, no real time."""

    def __init__(self) -> None:
        super().__init__(BEGIN_US)
        self.asleep_now = Event()
        self.wake = Event()

    def sleep(self, seconds: float) -> None:
        self.asleep_now.set()
        assert self.wake.wait(10)
        self.advance(seconds)


def test_who_sleeps_holds_no_lock_and_delays_no_other_key() -> None:
    clock = GatedClock()
    limiter = Limiter("1/second", clock=clock)
    limiter.take("slow")
    sleeper = Thread(target=limiter.wait, args=("slow",))
    sleeper.start()
    assert clock.asleep_now.wait(10)
    assert limiter.wait("other").at == BEGIN_US
    assert limiter.take("third")
    assert not limiter.take("slow")
    clock.wake.set()
    sleeper.join(10)
    assert not sleeper.is_alive()


def test_threads_are_served_in_the_order_they_came() -> None:
    clock = GatedClock()
    limiter = Limiter("1/second", clock=clock)
    limiter.take("k")
    served: list[int] = []
    lines = limiter._limits.lines._own()._lines

    def queue(number: int) -> None:
        assert limiter.wait("k")
        served.append(number)

    threads = []
    for number in range(6):
        thread = Thread(target=queue, args=(number,))
        thread.start()
        threads.append(thread)
        while len(lines.get("k", ())) <= number:
            pass
    clock.wake.set()
    for thread in threads:
        thread.join(10)
    assert served == list(range(6))
    assert not lines, "a line is there only while somebody stands in it"


def test_tasks_are_served_in_the_order_they_came_and_a_cancelled_one_leaves() -> None:
    async def main() -> None:
        clock = FakeClock(BEGIN_US)
        limiter = AsyncLimiter("1/second", clock=clock)
        await limiter.take("k")
        served: list[int] = []

        async def queue(number: int) -> None:
            assert await limiter.wait("k")
            served.append(number)

        tasks = [asyncio.create_task(queue(number)) for number in range(5)]
        for _ in range(2):
            await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert served == [0, 1, 3, 4]
        assert tasks[2].cancelled()

    asyncio.run(main())


def test_in_line_past_the_timeout_is_a_denial() -> None:
    class LateClock(FakeClock):
        """Moves only after everybody has had a turn."""

        async def asleep(self, seconds: float) -> None:
            for _ in range(9):
                await asyncio.sleep(0)
            self.advance(seconds)

    async def main() -> None:
        clock = LateClock(BEGIN_US)
        limiter = AsyncLimiter("1/second", clock=clock)
        await limiter.take("k")
        first = asyncio.create_task(limiter.wait("k"))
        second = asyncio.create_task(limiter.wait("k", timeout=1.5))
        hopeless = asyncio.create_task(limiter.wait("k", timeout=0.5))
        assert not await hopeless
        assert await first
        assert not await second
        assert clock() == BEGIN_US + 1_000_000

    asyncio.run(main())


def test_who_leaves_the_queue_gives_the_place_back() -> None:
    async def main() -> None:
        limiter = AsyncLimiter("1/minute", algo="LB", burst=3, clock=StuckClock(BEGIN_US))
        await limiter.take("k")
        waiting = asyncio.create_task(limiter.wait("k"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (await limiter.peek("k")).remaining == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await limiter.peek("k")).remaining == 2

    asyncio.run(main())


class StuckClock(FakeClock):
    async def asleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


def test_on_the_ordinary_clock_what_passes_at_once_passes_without_patience() -> None:
    limiter = Limiter("10/hour")
    assert all(limiter.wait(f"k{number}", timeout=0) for number in range(20))
    limiter = Limiter("100/second", burst=1)

    def passes_in_time(key: str) -> bool:
        limiter.take(key)
        return bool(limiter.wait(key, timeout=limiter.peek(key).retry_after))

    # A thread that stands still right after it was denied has no patience left. All of them do not.
    tries = [passes_in_time(f"try {number}") for number in range(20)]
    assert tries.count(True) > 10, "it slept for it and was denied all the same"


def test_patience_without_end_is_waiting_as_long_as_it_takes() -> None:
    limiter = Limiter("1/second", clock=FakeClock())
    for timeout in (1e10, 10**400, inf):
        assert limiter.wait("k", timeout=timeout)


def test_a_line_passes_over_those_whose_loop_is_gone() -> None:
    lines = WaitQueues()
    first, last = ThreadTicket(), ThreadTicket()

    async def make() -> TaskTicket:
        return TaskTicket()

    gone = asyncio.run(make())
    assert [lines.join("k", ticket) for ticket in (first, gone, last)] == [True, False, False]
    lines.leave("k", first)
    assert last.wait(0), "the one behind was not called"
    lines.leave("k", gone)
    lines.leave("k", last)
    assert not lines._own()._lines


def test_on_the_ordinary_clock_it_really_sleeps() -> None:
    limiter = Limiter("1000/second", burst=1)
    moments = [limiter.wait("k").at for _ in range(5)]
    assert all(later - sooner >= 1_000 for sooner, later in pairwise(moments))

    async def main() -> None:
        alimiter = AsyncLimiter("1000/second", burst=1)
        for _ in range(3):
            assert await alimiter.wait("k")
        hourly = AsyncLimiter("1/hour")
        assert await hourly.wait("k")
        assert not await hourly.wait("k", timeout=0)

    asyncio.run(main())
