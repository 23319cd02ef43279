"""A million steps without drift: admitted = rate x time, to the request."""

from __future__ import annotations

import pytest

from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import limit_from_spelling
from diana.runtime.entry_points import algorithm_from_spelling

BEGIN_US = 1_700_000_000_000_000
STEPS = 1_000_000


def meter(spelling: str, algo: str, **options: object) -> CounterSpec:
    return meter_from_limit(
        "m", limit_from_spelling(spelling), algorithm_from_spelling(algo), options
    )


@pytest.mark.parametrize(
    ("spelling", "step_us"),
    [("3/second", 1_117), ("7/minute", 30_011), ("300000/second", 3), ("999983/day", 8_641)],
)
def test_a_bucket_admits_rate_times_time(spelling: str, step_us: int) -> None:
    bucket = meter(spelling, "TB", burst=1)
    decide, params = bucket.algorithm.decide, bucket.params
    state, admitted, now = None, 0, BEGIN_US
    for _ in range(STEPS):
        state, outcome = decide(state, params, 1, now)
        admitted += outcome[0]
        now += step_us
    elapsed = (STEPS - 1) * step_us
    rpu, unit = bucket.limit
    ideal = 1 + elapsed * rpu // unit
    # Pushing every step_us, a permit is used up to one step after it is there; none is ever lost or invented.
    assert ideal * unit // (unit + rpu * step_us) <= admitted <= ideal


@pytest.mark.parametrize("spelling", ["3/second", "7/minute", "300000/second", "999983/day"])
def test_a_bucket_asked_exactly_when_due_never_drifts(spelling: str) -> None:
    bucket = meter(
        spelling, "TB", burst=2
    )  # with one place, what drips into a full bucket is lost, rightly
    decide, params = bucket.algorithm.decide, bucket.params
    state, _ = decide(None, params, 2, BEGIN_US)
    now = BEGIN_US
    admitted = STEPS // 4
    for _ in range(admitted):
        _, (allowed, _, retry_us, _, _) = decide(state, params, 1, now)
        assert not allowed
        now += retry_us
        state, outcome = decide(state, params, 1, now)
        assert outcome[0]
    rpu, unit = bucket.limit
    tick = params.tick  # type: ignore[attr-defined]
    due = BEGIN_US + -(-admitted * unit // (rpu * tick)) * tick
    assert now == due


def test_a_window_admits_its_limit_every_window() -> None:
    window = meter("7/second", "W")
    decide, params = window.algorithm.decide, window.params
    state, admitted, now = None, 0, 0
    for _ in range(STEPS):
        state, outcome = decide(state, params, 1, now)
        admitted += outcome[0]
        now += 997
    windows, rest = divmod(now - 997, 1_000_000)
    assert rest > 7 * 997
    assert admitted == 7 * (windows + 1)


@pytest.mark.parametrize(("algo", "every_us"), [("SW", 1_100_000), ("SL", 1_000_000)])
def test_a_sliding_window_that_is_always_pushed_gives_its_share(algo: str, every_us: int) -> None:
    """The price of slices: the limit per slices + 1 slices, not per slices. The log gives all of it."""
    sliding = meter("11/second", algo)
    decide, params = sliding.algorithm.decide, sliding.params
    state, admitted, now = None, 0, 0
    for _ in range(200_000):
        state, outcome = decide(state, params, 1, now)
        admitted += outcome[0]
        now += 1_000
    assert admitted == 11 * -(-now // every_us)


@pytest.mark.parametrize(
    ("spelling", "tick"), [("3/second", 1), ("999983/day", 100), ("1000000/day", 1)]
)
def test_the_tick_is_the_finest_that_fits(spelling: str, tick: int) -> None:
    assert meter(spelling, "TB").params.tick == tick  # type: ignore[attr-defined]
