"""A refund gives back what still counts, and no more."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from diana import Decision, Limiter
from diana.core.contracts import State
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.entry_log import Log
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.testing import FakeClock

SECOND_US = 1_000_000
BEGIN_US = 1_700_000_000_000_000


def ten_per_second(code: str) -> CounterSpec:
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
        (200_000, (9, 4)),  # the 3 others have leaked by 2
        (500_000, (10, 7)),
        (900_000, (10, 10)),
    ],
)
def test_a_refunded_bucket_is_as_if_it_had_not_been_charged(
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


def test_what_leaked_before_a_later_charge_is_not_refunded() -> None:
    meter = ten_per_second("TB")
    decide, refund = meter.algorithm.decide, meter.algorithm.refund
    state, _ = decide(None, meter.params, 5, BEGIN_US)
    later = BEGIN_US + 200_000
    state, _ = decide(state, meter.params, 5, later)  # level 3 + 5
    state = refund(state, meter.params, 5, BEGIN_US, later)
    assert decide(state, meter.params, 0, later)[1][1] == 5


@pytest.mark.parametrize("order", ["first come first", "last come first", "shuffled"])
@pytest.mark.parametrize("code", ["TB", "LB"])
def test_parallel_charges_lose_what_leaked_only_once(code: str, order: str) -> None:
    """Rounds of 40 charges, each refunded after 200 ms in which two requests leak: the bucket stays empty."""
    options: dict[str, int] = {"burst": 39} if code == "LB" else {"burst": 40}
    meter = meter_from_limit("parallel", Limit(10, SECOND_US), algorithms()[code], options)
    decide, refund = meter.algorithm.decide, meter.algorithm.refund
    random, now = Random(order), BEGIN_US
    state: State | None = None
    for _ in range(30):
        charged = []
        for _ in range(40):
            now += 300
            state, outcome = decide(state, meter.params, 1, now)
            assert outcome[0]
            charged.append(now)
        now += 200_000
        if order == "last come first":
            charged.reverse()
        elif order == "shuffled":
            random.shuffle(charged)
        for at in charged:
            now += 300
            state = refund(state, meter.params, 1, at, now)
    assert decide(state, meter.params, 0, now)[1][1] == 40


@pytest.mark.parametrize("order", [1, -1])
def test_clients_that_leave_a_queue_do_not_delay_the_next_one(order: int) -> None:
    clock = FakeClock()
    limiter = Limiter("5/second", algo="LB", burst=20, clock=clock)
    decisions = []
    for _ in range(21):
        decisions.append(limiter.take("k"))
        clock.advance(0.002)
    assert all(decisions)
    clock.advance(0.5 - clock() / SECOND_US % 1)
    now = clock()
    for decision in decisions[::order]:
        if decision.at + decision.outcome[4] > now:
            limiter.refund(decision)
    assert limiter.take("k").delay <= 0.15


@pytest.mark.parametrize("kept_per_second", [0, 5, 9])
def test_a_bucket_that_is_refunded_all_the_time_leaks_all_the_same(kept_per_second: int) -> None:
    """Of 200 charges a second all but a few are refunded 200 ms later, for ten minutes."""
    meter = meter_from_limit(
        "steady", Limit(600, 60 * SECOND_US), algorithms()["TB"], {"burst": 300}
    )
    decide, refund = meter.algorithm.decide, meter.algorithm.refund
    random, now = Random(7), BEGIN_US
    state: State | None = None
    outstanding: list[int] = []
    for _ in range(200 * 600):
        now += 5_000
        while outstanding and outstanding[0] + 200_000 <= now:
            state = refund(state, meter.params, 1, outstanding.pop(0), now)
        state, outcome = decide(state, meter.params, 1, now)
        assert outcome[0]
        if random.random() >= kept_per_second / 200:
            outstanding.append(now)


class Charged(NamedTuple):
    at: int
    cost: int
    number: int


@pytest.mark.parametrize("code", ["TB", "LB", "SW", "SL"])
@pytest.mark.parametrize("seed", range(120))
def test_refunds_never_leave_more_than_the_same_history_without_them(code: str, seed: int) -> None:
    random = Random(seed)
    unit_us, rpu = random.choice(
        [(SECOND_US, 1), (SECOND_US, 10), (7 * SECOND_US, 3), (60 * SECOND_US, 97)]
        + [(86_400 * SECOND_US, 999_983)] * (code in ("TB", "LB"))
    )
    options = {"burst": random.choice([1, 2, 5, 20, 40])} if code in ("TB", "LB") else {}
    meter = meter_from_limit("any", Limit(rpu, unit_us), algorithms()[code], options)
    algorithm, params = meter.algorithm, meter.params
    pace, now = max(1, unit_us // rpu), BEGIN_US
    state: State | None = None
    history: list[Charged] = []
    refunded: set[int] = set()
    refundable: list[Charged] = []
    for _ in range(random.randint(5, 60)):
        now += random.choice(
            [0, 0, 1, pace // 7, pace, 2 * pace, random.randint(0, pace * params.limit)]
        )
        if refundable and random.random() < 0.4:
            charge = refundable.pop(random.choice([0, -1, random.randrange(len(refundable))]))
            state = algorithm.refund(state, params, charge.cost, charge.at, now)
            refunded.add(charge.number)
        else:
            cost = random.choice([1, 1, 1, 2, 3])
            after, outcome = algorithm.decide(state, params, cost, now)
            if outcome[0]:
                state = after
                history.append(Charged(now, cost, len(history)))
                refundable.append(history[-1])
        without: State | None = None
        for charge in history:
            if charge.number not in refunded:
                without, outcome = algorithm.decide(without, params, charge.cost, charge.at)
                assert outcome[0], "a kept charge fits without the refunded ones"
        room = algorithm.decide(state, params, 0, now)[1][1]
        assert room <= algorithm.decide(without, params, 0, now)[1][1]


def test_a_queue_emptied_by_a_refund_after_a_step_back_is_as_good_as_new() -> None:
    meter = ten_per_second("TB")
    decide, params = meter.algorithm.decide, meter.params
    state, _ = decide(None, params, 5, BEGIN_US)
    back = BEGIN_US - 300_000
    state = meter.algorithm.refund(state, params, 5, BEGIN_US, back)
    assert decide(state, params, 10, back) == decide(None, params, 10, back)


@pytest.mark.parametrize("code", ["TB", "LB"])
@pytest.mark.parametrize("back_us", [1, 500_000, SECOND_US])
def test_after_a_step_back_a_charge_that_is_refunded_at_once_leaves_nothing(
    code: str, back_us: int
) -> None:
    """Again and again, as a guard does while a rule of scope global denies."""
    meter = ten_per_second(code)
    decide, refund, params = meter.algorithm.decide, meter.algorithm.refund, meter.params
    state, _ = decide(None, params, 2, BEGIN_US)
    state, _ = decide(state, params, 3, BEGIN_US)
    assert state is not None
    state = refund(state, params, 3, BEGIN_US, BEGIN_US)  # so that it has a ledger
    back = BEGIN_US - back_us
    before = decide(state, params, 0, back)[1]
    for _ in range(5):
        state, outcome = decide(state, params, 4, back)
        assert outcome[0]
        assert state is not None
        state = refund(state, params, 4, back, back)
        assert decide(state, params, 0, back)[1] == before
