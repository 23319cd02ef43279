"""What a node holds of one counter: tables of (moment, what happens, what is held)."""

from __future__ import annotations

from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.core.settings import LeaseTerms
from diana.runtime.entry_points import algorithms
from diana.stores.redis.leases.lease import EMPTY_US, Lease, is_fast_enough
from diana.stores.redis.leases.lease_request import LeaseGrant, LeasePool, LeaseRequest, answer

MS = 1_000
SECOND = 1_000_000
SERVER = 1_700_000_000 * SECOND


def meter(rpu: int = 1_000, code: str = "TB", unit_us: int = SECOND, **options: int) -> CounterSpec:
    return meter_from_limit("diana:x", Limit(rpu, unit_us), algorithms()[code], options)


def lease(some: CounterSpec | None = None) -> Lease:
    return Lease("a", some or meter(), "k", b"k", LeaseTerms(), 0)


def granted(
    permits: int, kept: int = 0, remaining: int = 100, valid_us: int = SECOND, retry_us: int = 0
) -> LeaseGrant:
    return LeaseGrant(True, permits, kept, valid_us, remaining, retry_us, 0, 2)


def filled(permits: int, now: int = 0, **grant: int) -> Lease:
    one = lease()
    one.finish(one.begin(now, 1), granted(permits, **grant), SERVER, now + MS)
    return one


def taken(one: Lease, times: int, now: int) -> int:
    return sum(one.take(1, now) for _ in range(times))


def test_the_first_grant_is_the_starting_share_and_at_most_one_part_of_all() -> None:
    assert lease().begin(0, nodes=1).start == 100
    assert lease().begin(0, nodes=4).start == 100
    assert lease().begin(0, nodes=20).start == 50
    assert lease(meter(5)).begin(0, nodes=8).start == 1


def test_what_is_granted_is_taken_and_no_more() -> None:
    one = filled(3)
    assert taken(one, 5, 2 * MS) == 3
    assert one.used == 3


def test_it_ends_by_the_clock_here_from_the_moment_of_asking() -> None:
    one = lease()
    ask = one.begin(10 * MS, 1)
    one.finish(ask, granted(5), SERVER, 400 * MS)  # the reply was slow
    assert one.take(1, 10 * MS + SECOND - 1)
    assert not one.take(1, 10 * MS + SECOND)
    assert one.holds(10 * MS + SECOND) == 0


def test_a_window_that_is_over_sooner_ends_it_sooner() -> None:
    one = filled(5, valid_us=30 * MS)
    assert one.take(1, 30 * MS - 1)
    assert not one.take(1, 30 * MS)


def test_it_asks_when_half_is_used_and_says_what_was() -> None:
    one = filled(1)
    one.wanted = 2_000
    one.finish(one.begin(SECOND // 2, 1), granted(40), SERVER, SECOND // 2 + MS)
    now = SECOND // 2 + 2 * MS
    while not one.is_due(now):
        assert one.take(1, now)
    assert 0 < one.permits <= one.low
    used = one.used
    ask = one.begin(now, 1)
    assert (ask.used, ask.keep) == (used, one.permits)
    assert ask.want > 0
    assert not one.is_due(now), "one ask at a time"


def test_what_is_used_while_it_asks_is_in_the_next_report() -> None:
    one = filled(10)
    taken(one, 4, 2 * MS)
    first = one.begin(3 * MS, 1)
    taken(one, 2, 4 * MS)
    one.finish(first, granted(5, kept=first.keep), SERVER, 5 * MS)
    second = one.begin(6 * MS, 1)
    assert (first.used, second.used) == (4, 2)
    assert second.base == first.seq


def test_a_lost_reply_is_made_up_for_by_the_next_report() -> None:
    """The store counts each use once, whether it has heard the first report or not; and a grant that never came goes back."""
    for heard in (True, False):
        some = meter(100)
        one, pool, now = lease(some), LeasePool(), SERVER

        def at_store(ask: LeaseRequest, later_us: int) -> LeaseGrant:
            nonlocal pool
            pool, grant = answer(pool, some, ask, now + later_us)  # noqa: B023
            assert grant is not None
            return grant

        first = one.begin(0, 1)
        one.finish(first, at_store(first, 0), SERVER, MS)
        held = one.permits
        taken(one, 3, 2 * MS)
        lost = one.begin(3 * MS, 1)
        if heard:
            at_store(lost, 3 * MS)
        one.lose(lost)
        taken(one, 2, 4 * MS)
        again = one.begin(5 * MS, 1)
        assert (again.base, again.used) == (lost.base, 5)
        one.finish(again, at_store(again, 5 * MS), SERVER, 6 * MS)
        assert pool.held == one.permits
        free = some.decide(pool.state, some.params, 0, now + 5 * MS)[1][1]
        assert 100 - free == 5, f"of {held} it used 5"


def test_what_comes_too_late_for_its_lease_is_not_held_any_more() -> None:
    some = meter(100)
    one, pool = lease(some), LeasePool()
    ask = one.begin(0, 1)
    pool, grant = answer(pool, some, ask, SERVER)
    one.finish(ask, grant, SERVER, MS)
    taken(one, 3, 2 * MS)
    ask = one.begin(900 * MS, 1)
    pool, grant = answer(pool, some, ask, SERVER + 5 * SECOND)
    one.finish(ask, grant, SERVER + 5 * SECOND, 5 * SECOND)
    assert grant is not None
    assert grant.kept == 0
    assert (one.permits, one.used) == (grant.granted, 0)
    assert pool.held == one.permits


def test_an_empty_pool_is_remembered_for_a_tenth_of_a_second_at_most() -> None:
    one = filled(0, remaining=0, retry_us=60 * SECOND)
    assert not one.take(1, 2 * MS)
    denied = one.denial(1, 2 * MS)
    assert denied is not None
    assert (denied[0], denied[2]) == (False, 60 * SECOND - 2 * MS)
    assert one.denial(1, EMPTY_US - 1) is not None
    assert one.denial(1, EMPTY_US) is None


def test_while_the_pool_is_empty_it_does_not_ask_again_at_once() -> None:
    one = filled(0, remaining=0, retry_us=100)
    one.take(1, 2 * MS)
    assert not one.is_due(5 * MS)
    assert one.is_due(20 * MS)


def test_a_refund_goes_to_the_live_lease_unless_it_is_reported() -> None:
    one = filled(5)
    taken(one, 2, 2 * MS)
    assert one.put_back(1, SERVER + 2 * MS, 3 * MS)
    assert not one.put_back(1, SERVER - 1, 3 * MS), "that was of a lease before"
    assert (one.permits, one.used) == (4, 1)
    ask = one.begin(4 * MS, 1)
    assert not one.put_back(1, SERVER + 2 * MS, 5 * MS), "that one is being reported"
    one.lose(ask)
    assert not one.put_back(1, SERVER + 2 * MS, 2 * SECOND), "the lease is over"


def test_a_refund_of_what_a_lost_ask_reported_is_the_pools() -> None:
    one = filled(10)
    taken(one, 4, 2 * MS)
    one.lose(one.begin(3 * MS, 1))
    assert not one.put_back(1, SERVER + 2 * MS, 4 * MS), "it may be counted already"
    assert one.take(1, 5 * MS)
    assert one.put_back(1, SERVER + 5 * MS, 5 * MS)
    assert one.used == 4


def test_what_nothing_is_asked_of_goes_back() -> None:
    one = filled(50)
    taken(one, 5, 2 * MS)
    ask = one.begin(100 * MS, 1)
    assert ask.keep > 0
    one.finish(ask, granted(0, kept=45), SERVER, 101 * MS)
    assert one.is_due(SECOND), "half of its time is over"
    ask = one.begin(SECOND, 1)
    assert (ask.keep, ask.want, ask.used) == (0, 0, 0)
    one.finish(ask, granted(0), SERVER, SECOND + MS)
    assert one.is_idle(SECOND + MS)


def test_a_cost_above_what_is_here_asks_with_all_that_is_here() -> None:
    one = filled(3)
    assert not one.take(5, 2 * MS)
    ask = one.begin(2 * MS, 1, cost=5)
    assert (ask.cost, ask.keep) == (5, 0)


def test_slow_limits_and_tiers_are_not_leased() -> None:
    assert is_fast_enough(meter(20))
    assert not is_fast_enough(meter(19))
    assert is_fast_enough(meter(1_200, unit_us=60 * SECOND))
    assert not is_fast_enough(meter(1_000_000, unit_us=86_400 * SECOND))
