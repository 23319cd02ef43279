"""A refund gives back what still counts, and no more."""

from __future__ import annotations

from random import Random

import pytest

from diana import Decision, Limiter
from diana.core.contracts import State
from diana.core.limit import Limit
from diana.core.log import Log
from diana.core.meter import Meter, meter_from_limit
from diana.core.plugins import algorithms
from diana.testing import FakeClock

SECOND_US = 1_000_000
BEGIN_US = 1_700_000_000_000_000


def ten_per_second(code: str) -> Meter:
    options = {"burst": 9} if code == "LB" else {}
    return meter_from_limit("refunded", Limit(10, SECOND_US), algorithms()[code], options)


def room_after_refund(code: str, charged: int, refunded: int, later_us: int) -> tuple[int, int]:
    """How much has room when refunding later, and how much would have without the refund."""
    meter = ten_per_second(code)
    decide, refund = meter.algorithm.decide, meter.algorithm.refund
    state, outcome = decide(None, meter.params, charged, BEGIN_US)
    assert outcome[0]
    assert state is not None
    now = BEGIN_US + later_us
    back = refund(state, meter.params, refunded, BEGIN_US, now)

    def room(some: State | None) -> int:
        return decide(some, meter.params, 0, now)[1][1]

    return room(back), room(state)


@pytest.mark.parametrize("code", algorithms())
def test_at_the_same_instant_it_undoes_the_charge(code: str) -> None:
    assert room_after_refund(code, 8, 5, 0) == (7, 2)


@pytest.mark.parametrize("code", ["TB", "LB"])
@pytest.mark.parametrize(
    ("later_us", "room"),
    [
        (200_000, (7, 4)),  # 2 of the 5 have leaked since: 3 come back
        (500_000, (7, 7)),  # all 5 have: nothing comes back
        (900_000, (10, 10)),
    ],
)
def test_a_bucket_gives_back_what_has_not_leaked(
    code: str, later_us: int, room: tuple[int, int]
) -> None:
    assert room_after_refund(code, 8, 5, later_us) == room


@pytest.mark.parametrize(("code", "last_us"), [("W", 999_999), ("SW", 1_099_999), ("SL", 999_999)])
def test_others_give_back_only_while_it_still_counts(code: str, last_us: int) -> None:
    assert room_after_refund(code, 8, 5, last_us) == (7, 2)
    assert room_after_refund(code, 8, 5, last_us + 1) == (10, 10)


@pytest.mark.parametrize("code", algorithms())
def test_more_than_was_charged_never_comes_back(code: str) -> None:
    assert room_after_refund(code, 3, 9, 0) == (10, 7)


def test_a_window_that_was_given_back_whole_begins_anew() -> None:
    window = meter_from_limit("w", Limit(2, 60 * SECOND_US), algorithms()["W"], {"align": "first"})
    decide, params = window.decide, window.params
    state, _ = decide(None, params, 1, BEGIN_US)
    assert state is not None
    state = window.algorithm.refund(state, params, 1, BEGIN_US, BEGIN_US)
    later = BEGIN_US + 59 * SECOND_US
    assert decide(state, params, 2, later)[1] == decide(None, params, 2, later)[1]


def test_a_log_strikes_out_only_the_charge_of_that_moment() -> None:
    log = ten_per_second("SL")
    state: State | None = None
    for moment in (0, 1, 1, 2):
        state, _ = log.algorithm.decide(state, log.params, 1, BEGIN_US + moment)
    assert state is not None
    left = log.algorithm.refund(state, log.params, 1, BEGIN_US + 1, BEGIN_US + 5)
    assert isinstance(left, Log)
    assert list(left.entries()) == [(BEGIN_US, 1), (BEGIN_US + 1, 1), (BEGIN_US + 2, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_that_clients_leave_releases_no_more_than_a_bucket_of_its_size(seed: int) -> None:
    """Who fills a queue, leaves all places but the last and fills it again cannot gather more in one moment than the queue holds."""
    random = Random(seed)
    rpu, burst = random.randint(1, 5), random.randint(1, 9)
    clock = FakeClock()
    limiter = Limiter(f"{rpu}/second", algo="LB", burst=burst, clock=clock)
    waiting: list[tuple[int, Decision]] = []
    released: list[int] = []
    for _ in range(400):
        released += [at for at, _ in waiting if at <= clock()]
        waiting = [(at, decision) for at, decision in waiting if at > clock()]
        if random.random() < 0.5 and (decision := limiter.take("k")):
            waiting.append((clock() + decision.outcome[4], decision))
        elif waiting and random.random() < 0.7:
            limiter.refund(waiting.pop(random.randrange(max(1, len(waiting) - 1)))[1])
        elif random.random() < 0.3:
            clock.advance(random.choice([0.01, 0.1, 0.5, 1]))
    released += [at for at, _ in waiting]
    released.sort()
    for first, begin in enumerate(released):
        for last in range(first, len(released)):
            allowed = burst + 1 + (released[last] - begin) * rpu / 1_000_000
            assert last - first + 1 <= allowed
