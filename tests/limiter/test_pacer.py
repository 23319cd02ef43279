from __future__ import annotations

import asyncio
import json
from math import inf, nan
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from diana import ConfigError, Pacer
from diana.testing import FakeClock

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "pacer.json").read_text("utf-8"))


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["title"])
def test_the_worked_examples(case: dict[str, Any]) -> None:
    clock = FakeClock()
    pacer = Pacer(case["rate"], warmup=case.get("warmup_s"), clock=clock)
    for step in case["steps"]:
        before = clock()
        assert pacer.acquire(step["acquire"]) == pytest.approx(step["waited_s"], abs=1e-9)
        assert clock() - before == round(step["waited_s"] * 1_000_000)


def test_idle_time_is_stored_up_to_burst_seconds() -> None:
    clock = FakeClock()
    pacer = Pacer(10, burst_seconds=0.5, clock=clock)
    clock.advance(60)
    assert [round(pacer.acquire(), 6) for _ in range(8)] == [0, 0, 0, 0, 0, 0, 0.1, 0.1]


def test_a_warmed_up_pacer_cools_down_when_idle() -> None:
    clock = FakeClock()
    pacer = Pacer(2, warmup=4, clock=clock)
    while pacer.acquire() != 0.5:
        pass
    clock.advance(60)
    assert [pacer.acquire(), pacer.acquire()] == [0, pytest.approx(1.375)]


def test_the_cold_factor_is_how_much_slower_cold_is() -> None:
    clock = FakeClock()
    pacer = Pacer(1, warmup=10, cold_factor=1, clock=clock)
    assert [pacer.acquire() for _ in range(3)] == [0, 1, 1]


def test_try_acquire_waits_no_longer_than_the_timeout() -> None:
    clock = FakeClock()
    pacer = Pacer(1, clock=clock)
    assert pacer.try_acquire(3)
    assert not pacer.try_acquire()
    assert not pacer.try_acquire(timeout=2.9)
    assert clock() == 0
    assert pacer.try_acquire(timeout=3)
    assert clock() == 3_000_000


def test_the_rate_can_be_set_anew() -> None:
    clock = FakeClock()
    pacer = Pacer(1, clock=clock)
    pacer.acquire()
    pacer.set_rate(10)
    assert [pacer.acquire(), pytest.approx(0.1)] == [1, pacer.acquire()]


def test_what_is_stored_is_kept_in_proportion() -> None:
    clock = FakeClock()
    pacer = Pacer(10, clock=clock)
    clock.advance(0.5)
    pacer.set_rate(20)
    assert sum(pacer.acquire() for _ in range(11)) == 0
    assert pacer.acquire() == pytest.approx(0.05)


def test_the_async_twins_do_the_same() -> None:
    async def main() -> None:
        clock = FakeClock()
        pacer = Pacer(1, clock=clock)
        assert await pacer.aacquire(2) == 0
        assert await pacer.aacquire() == 2
        assert not await pacer.try_aacquire()
        assert await pacer.try_aacquire(timeout=1)

    asyncio.run(main())


def test_threads_share_the_rate() -> None:
    clock = FakeClock()
    pacer = Pacer(1_000_000, burst_seconds=0, clock=clock)
    threads = [Thread(target=lambda: [pacer.acquire() for _ in range(1_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pacer._free_at >= 4_000


@pytest.mark.parametrize("rate", [0, -1, nan, -inf, True, "5", 10**400, 5e-324])
def test_a_rate_that_is_no_rate_is_an_error(rate: Any) -> None:
    with pytest.raises(ConfigError, match="write a number above 0, at least 1e-09 and at most"):
        Pacer(rate)
    with pytest.raises(ConfigError):
        Pacer(1).set_rate(rate)


@pytest.mark.parametrize(
    "options", [{"warmup": -1}, {"warmup": False}, {"burst_seconds": -1}, {"cold_factor": 0.5}]
)
def test_a_wrong_option_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Pacer(1, **options)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, 10**400])
def test_permits_are_counted_whole(n: Any) -> None:
    with pytest.raises(ConfigError, match="write a whole number from 1"):
        Pacer(1).acquire(n)


@pytest.mark.parametrize("rate", [3, 7, 30, 300_000, 0.3])
def test_a_permit_is_there_at_the_very_moment(rate: float) -> None:
    clock = FakeClock()
    pacer = Pacer(rate, burst_seconds=0, clock=clock)
    assert pacer.try_acquire()
    clock.advance(1 / rate)
    assert pacer.try_acquire()
    for number in range(2, 50):
        clock.set(int(number * 1_000_000 / rate))  # the last microsecond before it
        assert pacer.try_acquire()
        assert not pacer.try_acquire()


def test_a_pause_holds_everybody() -> None:
    clock = FakeClock()
    pacer = Pacer(5, clock=clock)
    clock.advance(10)  # a second of permits is stored
    pacer.pause(30)
    assert not pacer.try_acquire(timeout=29)
    assert [round(pacer.acquire(), 6) for _ in range(3)] == [30.0, 0.2, 0.2]
    pacer.pause(0)
    assert round(pacer.acquire(), 6) == 0.2
    pacer.acquire(50)
    pacer.pause(1)  # shorter than what there is to wait anyway
    assert round(pacer.acquire(), 6) == 10.0
    with pytest.raises(ConfigError, match="pause is -1; write a number from 0, at most"):
        pacer.pause(-1)


def test_after_a_pause_a_pacer_that_warms_up_is_as_cold_as_before() -> None:
    paused, rested = (Pacer(2, warmup=4, clock=FakeClock()) for _ in range(2))
    paused.pause(10)
    assert paused.acquire() == 10.0 + rested.acquire()
    assert [paused.acquire() for _ in range(5)] == [rested.acquire() for _ in range(5)]


def test_the_rate_can_be_read() -> None:
    pacer = Pacer(2.5)
    assert pacer.rate == 2.5
    pacer.set_rate(4)
    assert pacer.rate == 4


@pytest.mark.parametrize("warmup", [None, 0, 4])
def test_at_an_infinite_rate_nobody_waits(warmup: float | None) -> None:
    clock = FakeClock()
    pacer = Pacer(inf, warmup=warmup, clock=clock)
    assert pacer.rate == inf
    assert [pacer.acquire(10**9) for _ in range(3)] == [0, 0, 0]
    clock.advance(5)
    assert pacer.acquire(10**9) == 0


def test_a_debt_made_before_is_paid_at_an_infinite_rate_too() -> None:
    pacer = Pacer(1, clock=FakeClock())
    pacer.acquire(3)
    pacer.set_rate(inf)
    assert [pacer.acquire(), pacer.acquire()] == [3, 0]


def test_back_from_an_infinite_rate_a_burst_is_stored() -> None:
    pacer = Pacer(inf, clock=FakeClock())
    pacer.acquire()
    pacer.set_rate(10)
    assert sum(pacer.acquire() for _ in range(11)) == 0
    assert pacer.acquire() == pytest.approx(0.1)


def test_back_from_an_infinite_rate_a_warm_pacer_is_warm() -> None:
    pacer = Pacer(inf, warmup=4, clock=FakeClock())
    pacer.acquire()
    pacer.set_rate(2)
    assert [pacer.acquire() for _ in range(3)] == [0, 0.5, 0.5]


def test_without_any_time_to_warm_up_there_is_no_burst_either() -> None:
    clock = FakeClock()
    pacer = Pacer(2, warmup=0, clock=clock)
    clock.advance(60)
    assert [pacer.acquire() for _ in range(3)] == [0, 0.5, 0.5]
