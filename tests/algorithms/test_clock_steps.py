"""A clock that is set back or forward blocks nobody for long and gives at most one more burst."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diana.core.charge import charged_at
from diana.core.contracts import State
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.decision import UNKNOWN, Decision, Outcome
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
BEGIN_US = 1_700_000_000_000_000


def meter(code: str, unit_us: int = SECOND_US) -> CounterSpec:
    options = {"burst": 9} if code == "LB" else {}
    return meter_from_limit("stepped", Limit(10, unit_us), algorithms()[code], options)


def full(some: CounterSpec, now: int = BEGIN_US) -> State:
    """A state without room."""
    state, (allowed, remaining, *_) = some.algorithm.decide(None, some.params, 10, now)
    assert allowed
    assert remaining == 0
    assert state is not None
    return state


def wait_us(outcome: tuple[bool, int, int, int, int]) -> int:
    """Until it passes. Of places nobody knows when one is given back; at the latest when all have run off."""
    return outcome[3] if outcome[2] == UNKNOWN else outcome[2]


@pytest.mark.parametrize("code", algorithms())
@pytest.mark.parametrize("unit_us", [SECOND_US, 60 * SECOND_US])
@pytest.mark.parametrize(
    "back_us", [1, 500_000, SECOND_US, SECOND_US + 1, 10 * SECOND_US, 2 * HOUR_US]
)
def test_set_back_it_keeps_the_count_and_blocks_no_longer_than_reset_and_a_second(
    code: str, unit_us: int, back_us: int
) -> None:
    some = meter(code, unit_us)
    state = full(some)
    now = BEGIN_US - back_us
    after, outcome = some.algorithm.decide(state, some.params, 1, now)
    retry_us, new_reset_us = wait_us(outcome), outcome[3]
    assert not outcome[0], "a step back forgot what was counted"
    longest = (11 * unit_us // 10 if code == "SW" else unit_us) + SECOND_US
    assert 0 < retry_us <= longest
    assert new_reset_us <= longest
    assert after is not None
    assert some.algorithm.decide(after, some.params, 1, now + retry_us)[1][0]


@pytest.mark.parametrize("code", algorithms())
def test_a_little_ahead_is_kept_and_the_difference_is_waited_for(code: str) -> None:
    some = meter(code)
    state, before = some.algorithm.decide(full(some), some.params, 1, BEGIN_US)
    after, outcome = some.algorithm.decide(state, some.params, 1, BEGIN_US - 700_000)
    assert after is state, "a denial wrote, though the state is no further ahead than a second"
    assert wait_us(outcome) == wait_us(before) + 700_000
    assert outcome[3] == before[3] + 700_000


@pytest.mark.parametrize("code", algorithms())
def test_far_ahead_is_stamped_anew_once_with_its_counts(code: str) -> None:
    some = meter(code)
    state = full(some)
    now = BEGIN_US - HOUR_US
    stamped, outcome = some.algorithm.decide(state, some.params, 1, now)
    assert not outcome[0]
    assert stamped is not state, "every denial would start the wait from the beginning"
    again, later = some.algorithm.decide(stamped, some.params, 1, now + 10_000)
    assert again is stamped
    assert wait_us(later) == wait_us(outcome) - 10_000


@pytest.mark.parametrize("code", algorithms())
@pytest.mark.parametrize("back_us", [1, 500_000, 10 * SECOND_US])
def test_emptied_by_a_refund_it_is_as_good_as_new_when_the_clock_is_set_back(
    code: str, back_us: int
) -> None:
    some = meter(code)
    decide, algorithm = some.algorithm.decide, some.algorithm
    state, outcome = decide(None, some.params, 10, BEGIN_US)
    at = charged_at(some, Decision(Outcome(*outcome), some.params.limit, "k", 10, BEGIN_US))
    assert state is not None
    emptied = algorithm.refund(state, some.params, 10, at, BEGIN_US)
    back = BEGIN_US - back_us
    assert decide(emptied, some.params, 3, back)[1] == decide(None, some.params, 3, back)[1]


@pytest.mark.parametrize("code", algorithms())
def test_set_forward_it_is_as_if_the_time_had_passed(code: str) -> None:
    some = meter(code)
    state = full(some)
    assert some.algorithm.decide(state, some.params, 10, BEGIN_US + 86_400 * SECOND_US)[1][0]


@pytest.mark.parametrize("code", algorithms())
def test_any_step_gives_at_most_one_more_burst_and_never_blocks_for_long(code: str) -> None:
    some = meter(code)
    decide, params = some.algorithm.decide, some.params
    paces = st.lists(st.integers(0, 300_000), min_size=1, max_size=20)

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(paces, st.integers(-2 * HOUR_US, 2 * HOUR_US), paces)
    def bounded(before: list[int], step_us: int, after: list[int]) -> None:
        state, now, admitted, elapsed = None, BEGIN_US, 0, 0
        for part, gaps in enumerate((before, after)):
            now += step_us * part
            for gap in gaps:
                now += gap
                elapsed += gap
                state, outcome = decide(state, params, 1, now)
                admitted += outcome[0]
                assert outcome[2] <= 2 * SECOND_US + 200_000
        promised = some.algorithm.promise(params, elapsed + 1)
        assert admitted <= promised + some.algorithm.promise(params, 1) + params.limit

    bounded()
