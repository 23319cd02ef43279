"""So many at once: places that are taken, given back, renewed, and that run off."""

from __future__ import annotations

from typing import Any

import pytest

from diana.algorithms.concurrency import Concurrency, concurrency
from diana.core.counter import meter_from_limit
from diana.core.decision import NEVER, UNKNOWN
from diana.core.entry_log import NO_LOG, Log
from diana.core.errors import ConfigError
from diana.core.limit import Limit, checked_places
from diana.testing import algorithm_laws

BEGIN_US = 1_700_000_000_000_000
HOLD_US = 10_000_000

decide, refund = Concurrency.decide, Concurrency.refund


def params(most: int = 2, **options: Any) -> Any:
    return concurrency.params(Limit(most, HOLD_US), **options)


def full(most: int = 2, now: int = BEGIN_US) -> tuple[Log, list[int]]:
    """All places taken in one instant, and their moments."""
    state: Log | None = None
    moments = []
    for _ in range(most):
        state, outcome = decide(state, params(most), 1, now)
        moments.append(Concurrency.moment_of(params(most), outcome, now))
    assert state is not None
    return state, moments


def room(state: Log | None, now: int = BEGIN_US, most: int = 2) -> int:
    return decide(state, params(most), 0, now)[1][1]


def test_places_of_one_instant_have_moments_of_their_own() -> None:
    assert full(3)[1] == [BEGIN_US, BEGIN_US + 1, BEGIN_US + 2]


def test_a_denial_names_no_time_unless_retry_says_one() -> None:
    state, _ = full()
    assert decide(state, params(), 1, BEGIN_US)[1][:3] == (False, 0, UNKNOWN)
    assert decide(state, params(retry="2s"), 1, BEGIN_US)[1][:3] == (False, 0, 2_000_000)
    assert decide(state, params(), 3, BEGIN_US)[1][:3] == (False, 0, NEVER)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_place_is_free_as_soon_as_it_is_given_back_and_only_once(which: int) -> None:
    state, moments = full(3)
    for _ in range(3):
        state = refund(state, params(3), 1, moments[which], BEGIN_US + 5)
        assert room(state, BEGIN_US + 5, 3) == 1


def test_a_place_that_nobody_gives_back_is_free_after_hold_and_not_before() -> None:
    state, moments = full()
    assert not decide(state, params(), 1, moments[0] + HOLD_US - 1)[1][0]
    assert decide(state, params(), 1, moments[0] + HOLD_US)[1][0]
    assert room(state, moments[1] + HOLD_US - 1) == 1
    assert room(state, moments[1] + HOLD_US) == 2


def test_a_renewed_place_is_held_from_now_on() -> None:
    state, moments = full()
    now = BEGIN_US + 9_000_000
    state, since = Concurrency.renew(state, params(), 1, moments[0], now)
    assert since == now
    assert room(state, now) == 0
    assert room(state, now + HOLD_US - 1) == 1
    assert room(refund(state, params(), 1, moments[0], now), now) == 0, "its old name is gone"
    assert room(refund(state, params(), 1, since, now), now) == 1


def test_a_place_that_ran_off_is_taken_anew_if_there_is_room() -> None:
    state, moments = full()
    late = BEGIN_US + 2 * HOLD_US
    taken, since = Concurrency.renew(state, params(), 1, moments[0], late)
    assert (since, room(taken, late)) == (late, 1)
    others, _ = full(now=late)
    lost, none = Concurrency.renew(others, params(), 1, moments[0], late)
    assert (none, room(lost, late)) == (0, 0)
    assert lost.amount == 2, "more than all places are held"


def test_a_renewed_place_stays_though_the_limit_was_lowered() -> None:
    state, moments = full(3)
    state, since = Concurrency.renew(state, params(1), 1, moments[1], BEGIN_US + 10)
    assert since == BEGIN_US + 10
    assert state.amount == 3


def test_editing_hold_or_most_keeps_who_is_inside() -> None:
    one = meter_from_limit("c", checked_places(2, HOLD_US), concurrency, {})
    other = meter_from_limit("c", checked_places(5, 2 * HOLD_US), concurrency, {})
    assert one.id == other.id == "c|C|at once"
    assert str(one.limit) == "2 at once"


@pytest.mark.parametrize("back_us", [1, 1_000_000, 3_600_000_000])
def test_slots_are_released_by_name_after_the_clock_was_set_back(back_us: int) -> None:
    state, moments = full()
    now = BEGIN_US - back_us
    for free, at in enumerate(moments, 1):
        state = refund(state, params(), 1, at, now)
        assert room(state, now) == free


def test_a_slot_acquired_while_another_is_a_second_ahead_is_released_by_name() -> None:
    state, _ = full(1)
    now = BEGIN_US - 1_000_000
    after, outcome = decide(state, params(), 1, now)
    assert outcome[0]
    assert after is not None
    back = refund(after, params(), 1, Concurrency.moment_of(params(), outcome, now), now)
    assert room(back, now) == room(state, now) == 1


def test_a_clock_that_was_set_back_blocks_no_longer_than_hold() -> None:
    state, _ = full()
    now = BEGIN_US - 3_600_000_000
    stamped, outcome = decide(state, params(), 1, now)
    assert (outcome[0], outcome[3]) == (False, HOLD_US)
    assert decide(stamped, params(), 1, now + HOLD_US)[1][0]


@pytest.mark.parametrize(
    ("most", "options", "said"),
    [
        (100_001, {}, "too many"),
        (5, {"max_waiting": 3}, "max_wait"),
        (5, {"max_wait": "1s", "max_waiting": 0}, "whole number"),
        (5, {"retry": 1}, "duration"),
    ],
)
def test_what_cannot_be_meant_is_refused(most: int, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        params(most, **options)


class Forgetful(Concurrency):
    """Gives back whatever place is there."""

    @staticmethod
    def refund(state: Log, params: Any, cost: int, at: int, now: int) -> Log:
        left = Concurrency.refund(state, params, cost, at, now)
        return left if left is not state else state.strike(state.newest, cost)


class Twins(Concurrency):
    """Two places of one moment."""

    @staticmethod
    def moment_of(params: Any, outcome: tuple[bool, int, int, int, int], now: int) -> int:
        return now


class Prophet(Concurrency):
    """Tells a time that nobody can know."""

    @staticmethod
    def decide(state: Log | None, params: Any, cost: int, now: int) -> Any:
        after, outcome = Concurrency.decide(state, params, cost, now)
        return after, outcome if outcome[2] != UNKNOWN else (*outcome[:2], outcome[3], *outcome[3:])


class Dropping(Concurrency):
    """Renews by giving back."""

    @staticmethod
    def renew(state: Log | None, params: Any, cost: int, at: int, now: int) -> tuple[Log, int]:
        return Concurrency.refund(state or NO_LOG, params, cost, at, now), now


@pytest.mark.parametrize("broken", [Forgetful, Twins, Prophet, Dropping])
def test_the_laws_catch(broken: type[Concurrency]) -> None:
    with pytest.raises(AssertionError):
        algorithm_laws(broken(), examples=300)
