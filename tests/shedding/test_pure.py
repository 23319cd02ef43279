"""Smoothing, levels and choice: by tables and laws, on a clock that jumps."""

from __future__ import annotations

from itertools import pairwise
from math import e
from random import Random
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diana.core.shed_settings import Level
from diana.shedding.gauge import Gauge, Smoothing, leave_at, level_after
from diana.shedding.selection import LEAN, PATIENCE, ShedSelector
from diana.testing import FakeClock
from tests.shedding.lines import CPU_LEVELS, Dial, line


def test_a_step_is_followed_to_63_percent_in_the_time_constant_however_often_it_is_sampled() -> (
    None
):
    for samples in (1, 4, 1_000):
        smoothing = Smoothing(2.0)
        smoothing.add(0.0, 0.0)
        for number in range(1, samples + 1):
            smoothing.add(100.0, 2.0 * number / samples)
        assert smoothing.value == pytest.approx(100 * (1 - 1 / e))


def test_the_first_sample_counts_as_it_is_and_a_clock_that_stands_still_changes_nothing() -> None:
    smoothing = Smoothing(2.0)
    assert smoothing.add(92.0, 7.0) == 92.0
    assert smoothing.add(0.0, 7.0) == 92.0
    smoothing.forget()
    assert smoothing.add(10.0, 7.0) == 10.0


@pytest.mark.parametrize(
    ("current", "value", "after"),
    [
        (0, 79.9, 0), (0, 80.0, 1), (0, 89.9, 1), (0, 92.0, 2), (0, 95.0, 3), (0, 1e9, 3),
        (1, 75.1, 1), (1, 75.0, 0), (1, 90.0, 2),
        (2, 85.1, 2), (2, 85.0, 1), (2, 75.1, 1), (2, 75.0, 0),
        (3, 90.1, 3), (3, 90.0, 2), (3, 85.0, 1), (3, 0.0, 0),
    ],
)  # fmt: skip
def test_a_level_is_reached_at_its_above_and_left_five_points_below(
    current: int, value: float, after: int
) -> None:
    assert level_after(CPU_LEVELS, current, value) == after


@pytest.mark.parametrize(
    ("above", "left"), [(80, 75), (100, 95), (1_000, 950), (20_000, 19_000), (6, 3), (1, 0.5)]
)
def test_of_large_numbers_a_level_is_left_five_percent_below_and_of_small_ones_at_half(
    above: int, left: float
) -> None:
    assert leave_at(Level(above, 10)) == left


@given(
    st.lists(st.integers(1, 1_000), min_size=1, max_size=5, unique=True).map(sorted),
    st.integers(0, 5),
    st.floats(-10, 2_000),
)
def test_the_same_value_again_changes_no_level(
    aboves: list[int], current: int, value: float
) -> None:
    levels = [Level(above, 10) for above in aboves]
    once = level_after(levels, current, value)
    assert level_after(levels, once, value) == once
    assert level_after(levels, current, value - 1) <= once


def changes_of_level(noise: Random, mean: float, spread: float) -> tuple[int, set[int]]:
    gauge, clock = Gauge(line(Dial()), ()), FakeClock()
    gauge.add(mean, 0.0)
    changes, seen = 0, {gauge.level}
    for _ in range(120):
        clock.advance(0.5)
        before = gauge.level
        gauge.add(noise.gauss(mean, spread), clock() / 1e6)
        changes += gauge.level != before
        seen.add(gauge.level)
    return changes, seen


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mean", [80.0, 90.0])
def test_no_flapping_in_a_noisy_minute(mean: float, seed: int) -> None:
    """Two samples a second, right at a level's `above`, and off by 5 points and more: it is reached once, and not left."""
    changes, seen = changes_of_level(Random(seed), mean, 5.0)
    assert changes <= 1
    assert len(seen) <= 2


def test_without_smoothing_and_hysteresis_that_minute_does_flap() -> None:
    noise = Random(0)
    plain = [noise.gauss(90.0, 5.0) >= 90.0 for _ in range(120)]
    assert sum(one != other for one, other in pairwise(plain)) > 20


def other() -> bool:
    return False


def last() -> bool:
    return True


@pytest.mark.parametrize("reject", [1, 10, 30, 70, 99, 100])
def test_the_share_is_kept_to_a_few_requests_after_any_number(reject: int) -> None:
    choice = ShedSelector(Random(1))
    picked = 0
    for number in range(1, 10_001):
        picked += choice.picks(reject, other)
        assert abs(picked - number * reject / 100) <= 12


@pytest.mark.parametrize("reject", [10, 50, 70])
@pytest.mark.parametrize("clients", [2, 3, 10])
def test_clients_that_take_turns_are_shed_alike(reject: int, clients: int) -> None:
    choice = ShedSelector(Random(2))
    shed = [0] * clients
    for number in range(clients * 5_000):
        shed[number % clients] += choice.picks(reject, other)
    assert all(abs(times - 50 * reject) <= 250 for times in shed), shed


def shares(reject: int, of_last: float, requests: int = 20_000) -> tuple[float, float]:
    """In percent: how many of the others are shed, and of `last`."""
    choice, arrivals = ShedSelector(Random(3)), Random(4)
    asked, shed = [0, 0], [0, 0]
    for _ in range(requests):
        is_last = arrivals.random() < of_last
        asked[is_last] += 1
        shed[is_last] += choice.picks(reject, last if is_last else other)
    return tuple(100 * part / max(1, whole) for part, whole in zip(shed, asked, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("reject", "of_last", "others", "of_those"),
    [
        (10, 0.1, 100 / 9, 0), (30, 0.1, 300 / 9, 0), (30, 0.5, 60, 0), (70, 0.1, 700 / 9, 0),
        (70, 0.5, 100, 40), (70, 1.0, 0, 70), (100, 0.5, 100, 100),
    ],
)  # fmt: skip
def test_last_is_shed_only_when_nothing_else_is_left(
    reject: int, of_last: float, others: float, of_those: float
) -> None:
    shed_of_others, shed_of_last = shares(reject, of_last)
    assert shed_of_others == pytest.approx(others, abs=1)
    if of_those:
        assert shed_of_last == pytest.approx(of_those, abs=1)
    else:
        assert shed_of_last == 0


def test_what_is_owed_after_a_long_run_of_last_is_bounded() -> None:
    choice = ShedSelector(Random(5))
    for _ in range(10_000):
        choice.picks(10, last)
    following = [choice.picks(10, other) for _ in range(1_000)]
    assert sum(following) == pytest.approx(100 + PATIENCE + 0.9 / LEAN, abs=12)
    assert sum(choice.picks(10, other) for _ in range(1_000)) == pytest.approx(100, abs=24)


def test_threads_keep_the_share_together() -> None:
    choice, picked = ShedSelector(Random(6)), list[int]()

    def ask() -> None:
        picked.append(sum(choice.picks(30, other) for _ in range(2_500)))

    threads = [Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(picked) == pytest.approx(6_000, abs=12)


def test_retry_after_is_jittered_from_1_to_5() -> None:
    choice = ShedSelector(Random(7))
    assert {choice.retry_after(1, 5) for _ in range(200)} == {1, 2, 3, 4, 5}
