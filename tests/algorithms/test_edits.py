"""Editing rpu or burst keeps what was counted, and surprises nobody."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms

UNIT_US = 1_000_000
BEGIN_US = 1_700_000_000_000_000
BURST_FROM = {"TB": 1, "LB": 0}


def meter(code: str, rpu: int, burst: int | None = None, unit_us: int = UNIT_US) -> CounterSpec:
    options = {} if burst is None else {"burst": burst}
    return meter_from_limit("edited", Limit(rpu, unit_us), algorithms()[code], options)


@st.composite
def edits(draw: st.DrawFn, code: str) -> tuple[CounterSpec, CounterSpec]:
    """A limit and a lower one: both numbers at most what they were."""
    rpu, burst = draw(st.integers(1, 60)), draw(st.integers(1, 30))
    has_burst = code in BURST_FROM
    high = meter(code, rpu, burst if has_burst else None)
    low_burst = draw(st.integers(BURST_FROM.get(code, 1), burst))
    low = meter(code, draw(st.integers(1, rpu)), low_burst if has_burst else None)
    return high, low


@pytest.mark.parametrize("code", algorithms())
@pytest.mark.parametrize("lowered", [True, False])
def test_lower_never_admits_more_and_higher_never_less(code: str, lowered: bool) -> None:
    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(
        edits(code),
        st.lists(st.tuples(st.integers(0, UNIT_US), st.integers(1, 3)), max_size=15),
        st.integers(0, 2 * UNIT_US),
        st.integers(1, 3),
    )
    def holds(
        pair: tuple[CounterSpec, CounterSpec], history: list[tuple[int, int]], gap: int, cost: int
    ) -> None:
        old, new = pair if lowered else pair[::-1]
        state, now = None, BEGIN_US
        for pause, price in history:
            now += pause
            state, _ = old.algorithm.decide(state, old.params, price, now)
        by_old = old.algorithm.decide(state, old.params, cost, now + gap)[1][0]
        by_new = new.algorithm.decide(state, new.params, cost, now + gap)[1][0]
        if lowered:
            assert by_old or not by_new, "the lower limit admits what the higher denied"
        else:
            assert by_new or not by_old, "the higher limit denies what the lower admitted"

    holds()


@pytest.mark.parametrize("code", algorithms())
def test_what_was_counted_is_kept(code: str) -> None:
    options = {"burst": 9} if code == "LB" else {}
    ten = meter_from_limit("edited", Limit(10, UNIT_US), algorithms()[code], options)
    options = {"burst": 19} if code == "LB" else {}
    twenty = meter_from_limit("edited", Limit(20, UNIT_US), algorithms()[code], options)
    state, _ = ten.algorithm.decide(None, ten.params, 10, BEGIN_US)
    _, (allowed, remaining, *_) = twenty.algorithm.decide(state, twenty.params, 1, BEGIN_US)
    assert (allowed, remaining) == (True, 9)


def test_a_bucket_converts_the_level_then_clamps_then_leaks_at_the_new_rate() -> None:
    """Five of 10/s used, lowered to 3/s with a burst of 2 and looked at half a second later: full at the stamp, half a
    second at 3/s leaks 1.5 requests, so half of one is left in it."""
    old, new = meter("TB", 10, 10), meter("TB", 3, 2)
    state, _ = old.algorithm.decide(None, old.params, 5, BEGIN_US)
    after, outcome = new.algorithm.decide(state, new.params, 1, BEGIN_US + 500_000)
    assert outcome == (True, 0, 0, 500_000, 0)
    assert after == (1_500_000, BEGIN_US + 500_000, 1_000_000)


def test_the_level_is_converted_in_requests_and_rounded_up() -> None:
    """7/s counts a request as 1,000,000 drops, 10/s as 100,000: a leftover of 300,001 of them is 30,001 of these."""
    old, new = meter("TB", 7, 7), meter("TB", 10, 10)
    state, _ = old.algorithm.decide((300_001, BEGIN_US, 1_000_000), old.params, 0, BEGIN_US)
    after, _ = new.algorithm.decide(state, new.params, 1, BEGIN_US)
    assert after == (130_001, BEGIN_US, 100_000)


def test_the_alignment_of_a_window_can_be_edited() -> None:
    window = algorithms()["W"]
    limit = Limit(2, 60_000_000)
    first = window.params(limit, align="first")
    epoch = window.params(limit, align="epoch")
    state, _ = window.decide(None, first, 2, BEGIN_US)
    _, (allowed, _, retry_us, _, _) = window.decide(state, epoch, 1, BEGIN_US + 1)
    assert (allowed, retry_us) == (False, 59_999_999)
    assert window.decide(state, epoch, 1, BEGIN_US + 60_000_000)[1][0]
    state, _ = window.decide(None, epoch, 2, BEGIN_US)
    assert not window.decide(state, first, 1, BEGIN_US + 1)[1][0]
