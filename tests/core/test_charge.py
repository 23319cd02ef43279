"""All or nothing, and a denied request shows the others uncharged: as a table."""

from __future__ import annotations

import pytest

from diana.core.charge import Charge, decide_all_or_nothing
from diana.core.contracts import State
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.errors import CostError
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000


def meter(name: str, rpu: int, code: str = "TB") -> CounterSpec:
    return meter_from_limit(name, Limit(rpu, SECOND_US), algorithms()[code], {})


def used(some: CounterSpec, cost: int) -> State | None:
    return some.decide(None, some.params, cost, BEGIN_US)[0]


def test_nothing_asked_is_nothing_said() -> None:
    assert decide_all_or_nothing([], [], BEGIN_US) == ([], [])


def test_all_pass_and_all_are_to_be_written() -> None:
    wide, narrow = meter("wide", 9), meter("narrow", 2)
    decisions, after = decide_all_or_nothing(
        [Charge(wide, "k"), Charge(narrow, "k")], [None, None], BEGIN_US
    )
    assert [decision.remaining for decision in decisions] == [8, 1]
    assert after == [used(wide, 1), used(narrow, 1)]


@pytest.mark.parametrize("order", [1, -1])
def test_one_denies_so_none_is_written_and_the_other_shows_what_it_has(order: int) -> None:
    wide, narrow = meter("wide", 9), meter("narrow", 2)
    charges = [Charge(wide, "k", 3), Charge(narrow, "k", 1)][::order]
    decisions, after = decide_all_or_nothing(
        charges, [used(wide, 4), used(narrow, 2)][::order], BEGIN_US
    )
    assert [decision.allowed for decision in decisions][::order] == [True, False]
    assert [decision.remaining for decision in decisions][::order] == [5, 0]
    assert [decision.cost for decision in decisions][::order] == [3, 1]
    assert after == [None, None]


def test_a_cost_of_nothing_writes_nothing() -> None:
    some = meter("some", 9)
    decisions, after = decide_all_or_nothing([Charge(some, "k", 0)], [used(some, 4)], BEGIN_US)
    assert (decisions[0].remaining, after) == (5, [None])


@pytest.mark.parametrize("code", algorithms())
def test_a_denied_state_from_a_clock_set_back_is_written_and_only_that(code: str) -> None:
    wide, narrow = meter("wide", 9), meter("narrow", 2, code)
    full = used(narrow, narrow.params.limit)
    earlier = BEGIN_US - 10 * SECOND_US
    charges = [Charge(wide, "k"), Charge(narrow, "k")]
    decisions, after = decide_all_or_nothing(charges, [used(wide, 1), full], earlier)
    assert [decision.allowed for decision in decisions] == [True, False]
    assert after[0] is None
    assert after[1] is not None
    assert decide_all_or_nothing([charges[1]], [after[1]], earlier)[1] == [None], (
        "stamped anew again and again"
    )


@pytest.mark.parametrize("cost", [-1, 1.0, True, 2**53])
def test_wrong_costs_are_refused(cost: int) -> None:
    with pytest.raises(CostError):
        decide_all_or_nothing([Charge(meter("some", 9), "k", cost)], [None], BEGIN_US)
