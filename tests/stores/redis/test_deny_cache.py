"""Who was just denied need not ask again: a flood of denied requests costs no trips, and nobody is blocked for longer by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from diana import AsyncGuard, Guard, Limiter, Request
from diana.core.charge import Charge, charged_at
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.limit import uses_slots
from diana.rules.loading import rules_from_bytes
from diana.runtime.entry_points import algorithms
from diana.stores.memory import MemoryStore
from diana.stores.redis.deny_cache import DenyCache
from diana.stores.redis.store import RedisStore
from diana.testing import FakeClock
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.counting import (
    BEGIN_US,
    PATIENT_US,
    SECOND_US,
    acquisitions,
    meter,
    opened,
)

MINUTE_US = 60 * SECOND_US


@pytest.fixture(scope="module")
def store(redis7: Server) -> Iterator[RedisStore]:
    with opened(redis7.url) as store:
        yield store


def test_100_000_requests_on_a_limit_of_ten_per_minute(redis7: Server) -> None:
    """By the server's own clock, from threads and from tasks."""
    began = monotonic()
    with opened(redis7.url) as store, acquisitions(redis7) as asked:
        minute = meter("flood", rpu=10, unit_us=MINUTE_US)
        charges = [Charge(minute, "k")]
        passed = sum(bool(store.decide(charges)[0]) for _ in range(50_000))

        async def flood() -> int:
            decide = store.asynchronous.decide
            return sum([bool((await decide(charges))[0]) for _ in range(50_000)])

        passed += asyncio.run(flood())
        # One more every six seconds, and each time one who is denied before and one after.
        most = 10 + (monotonic() - began) / 6
        assert 10 <= passed <= most
        assert store.counts()["trips"] <= 2 * most
        assert store.counts()["deny_cache_hits"] >= 100_000 - 2 * most
    assert 11 <= len(asked) <= 2 * most


TELL_A_TIME = [code for code, one in algorithms().items() if not uses_slots(one)]


@pytest.mark.parametrize("code", TELL_A_TIME)
def test_nobody_is_blocked_for_longer_than_their_retry_after(code: str, store: RedisStore) -> None:
    options = {"burst": 9} if code == "LB" else {}
    charges = [Charge(meter("retry", code, 10, MINUTE_US, **options), "k")]
    while (denial := store.decide(charges, BEGIN_US)[0]).allowed:
        pass
    retry_us = denial.outcome[2]
    hits = store.counts()["deny_cache_hits"]
    assert not store.decide(charges, BEGIN_US + retry_us - 1)[0]
    assert store.counts()["deny_cache_hits"] == hits + 1
    assert store.decide(charges, BEGIN_US + retry_us)[0]
    assert store.counts()["deny_cache_hits"] == hits + 1


def test_a_denial_for_want_of_a_place_is_not_remembered(store: RedisStore) -> None:
    charge = Charge(meter("place", "C", 1, MINUTE_US), "k")
    beside = Charge(meter("beside", rpu=5), "k")
    (taken,) = store.decide([charge], BEGIN_US)
    hits = store.counts()["deny_cache_hits"]
    for _ in range(3):
        assert not all(store.decide([charge, beside], BEGIN_US))
    assert store.counts()["deny_cache_hits"] == hits, "a place may be free by now"
    store.refund([charge], charged_at(charge.meter, taken), BEGIN_US)
    assert all(store.decide([charge, beside], BEGIN_US))


def test_only_costs_at_least_as_high_are_denied_without_asking(store: RedisStore) -> None:
    some = meter("costs", rpu=10)
    assert store.decide([Charge(some, "k", 7)], BEGIN_US)[0]
    assert not store.decide([Charge(some, "k", 5)], BEGIN_US)[0]
    hits = store.counts()["deny_cache_hits"]
    for cost in (5, 6, 100):
        assert not store.decide([Charge(some, "k", cost)], BEGIN_US)[0]
    assert store.counts()["deny_cache_hits"] == hits + 3
    assert store.decide([Charge(some, "k", 3)], BEGIN_US)[0]
    assert store.counts()["deny_cache_hits"] == hits + 3


def test_a_request_with_one_denied_limit_among_several_costs_no_trip(store: RedisStore) -> None:
    wide, narrow = meter("wide", rpu=50), meter("narrow", rpu=1)
    both = [Charge(wide, "k"), Charge(narrow, "k")]
    assert all(store.decide(both, BEGIN_US))
    first = store.decide(both, BEGIN_US)
    trips = store.counts()["trips"]
    assert store.decide(both, BEGIN_US) == first
    assert [decision.allowed for decision in first] == [True, False]
    assert first[0].remaining == 49
    assert store.counts()["trips"] == trips


@pytest.mark.parametrize("how", ["reset", "refund", "raised limit"])
def test_it_is_cleared_by(how: str, redis7: Server) -> None:
    clock = FakeClock(BEGIN_US)
    with opened(redis7.url) as store:
        limiter = Limiter("2/minute", store=store, name=how, clock=clock)
        decisions = [limiter.take("k") for _ in range(4)]
        assert [decision.allowed for decision in decisions] == [True, True, False, False]
        match how:
            case "reset":
                limiter.reset("k")
            case "refund":
                limiter.refund(decisions[0])
            case _:
                limiter = Limiter("3/minute", store=store, name=how, clock=clock)
        assert limiter.take("k")


@pytest.mark.parametrize("length", [3, 1_000])
@pytest.mark.parametrize("cost", [1, 2, 20])
def test_a_log_of_any_length_is_denied_again_without_asking(
    length: int, cost: int, redis7: Server
) -> None:
    """And to the last field as the store would, until the very moment when the same cost passes."""
    some = meter("log", "SL", length, MINUTE_US)
    memory = MemoryStore()
    cost = min(cost, length)
    with opened(redis7.url, budget_us=PATIENT_US) as store:
        store.reset(some, f"k{cost}")
        for number in range(length):
            charges = [Charge(some, f"k{cost}")]
            now = BEGIN_US + number * 10_000
            assert store.decide(charges, now) == memory.decide(charges, now)
        charges = [Charge(some, f"k{cost}", cost)]
        (denial,) = store.decide(charges, now)
        retry_us = denial.outcome[2]
        trips = store.counts()["trips"]
        for later in (0, 1, retry_us // 2, retry_us - 1):
            assert store.decide(charges, now + later) == memory.peek(charges, now + later)
        assert store.counts()["trips"] == trips
        assert store.decide(charges, now + retry_us)[0]


def test_it_is_bounded() -> None:
    denials = DenyCache(most=3)
    some = meter("bounded", rpu=1)
    state, _ = some.decide(None, some.params, 1, BEGIN_US)
    for key in (b"a", b"b", b"a", b"c", b"d"):
        _, outcome = some.decide(state, some.params, 1, BEGIN_US)
        decision = _decision(some, outcome)
        denials.remember([decision], [key], {key: state}, denials.begin(BEGIN_US))
    assert len(denials) == 3
    charges = [Charge(some, "k")]
    known = [key for key in (b"a", b"b", b"c", b"d") if denials.answer(charges, [key], BEGIN_US)]
    assert known == [b"a", b"c", b"d"], "the oldest goes first"


def test_a_later_denial_with_another_cost_names_the_limit_that_is_full_too(redis7: Server) -> None:
    clock = FakeClock(BEGIN_US)
    with opened(redis7.url) as store:
        twice = [
            Limiter("2/minute; 3/hour", algo="W", store=one, name="costs beside", clock=clock)
            for one in (store, MemoryStore())
        ]
        for cost in (2, 1, 2, 1):
            found, wanted = [limiter.take("k", cost) for limiter in twice]
            assert found == wanted


SITE_AND_LOGIN = {
    "limits": [
        {"url": "/", "rules": [{"name": "site", "actor": "ip", "unit": "hour", "rpu": 3}]},
        {"url": "/login", "rules": [{"name": "login", "actor": "ip", "unit": "minute", "rpu": 1}]},
    ]
}
SALE = {
    "url": "/",
    "rules": [
        {"name": "per address", "actor": "ip", "unit": "hour", "rpu": 2},
        {"name": "sale", "actor": "all", "unit": "minute", "rpu": 3},
    ],
}


@pytest.mark.parametrize(
    ("rules", "requests"),
    [
        pytest.param(
            SITE_AND_LOGIN,
            [("/login", "1"), ("/login", "1"), ("/", "1"), ("/", "1"), ("/login", "1")],
            id="charged by this process since",
        ),
        pytest.param(
            SALE,
            [("/", "1"), ("/", "1"), ("/", "2"), ("/", "2"), ("/", "1"), ("/", "3")],
            id="denied by a rule for all because of another client",
        ),
    ],
)
@pytest.mark.parametrize("shell", ["threads", "tasks"])
def test_denials_of_several_rules_are_what_the_store_would_report(
    rules: dict[str, Any], requests: list[tuple[str, str]], shell: str, redis7: Server
) -> None:
    policy = rules_from_bytes(json.dumps(_document(rules, "global")).encode())
    clock = FakeClock(BEGIN_US)
    redis7.ask("FLUSHALL")
    with opened(redis7.url) as store:
        truth = Guard(policy, MemoryStore(), clock=clock)
        guard = Guard(policy, store, clock=clock)
        asynchronous = AsyncGuard(policy, store, clock=clock)
        for path, address in requests:
            request = Request(path=path, peer=f"203.0.113.{address}")
            wanted = truth.check(request)
            if shell == "threads":
                found = guard.check(request)
            else:
                found = asyncio.run(asynchronous.check(request))
            assert found.decisions == wanted.decisions
            assert found.denied_by == wanted.denied_by
            clock.advance(0.1)


def test_a_clock_that_is_set_back_makes_all_of_a_request_s_counters_unknown(
    store: RedisStore,
) -> None:
    """The store stamps each of them anew, and what was remembered of the second one is older than that."""
    long, short = meter("long", rpu=1, unit_us=7 * SECOND_US), meter("short", rpu=1)
    both = [Charge(long, "stepped"), Charge(short, "stepped")]
    memory, now = MemoryStore(), BEGIN_US
    for step_us in (0, 0, -1_100_000, 1_750_000):
        now += step_us
        assert store.decide(both, now) == memory.decide(both, now)


def test_time_goes_on_for_what_has_room_beside_a_denial(store: RedisStore) -> None:
    memory = MemoryStore()
    both = [Charge(meter("filling", "TB", 600, MINUTE_US), "k"), Charge(meter("one", rpu=1), "k")]
    for now in (BEGIN_US, BEGIN_US, BEGIN_US + 150_000, BEGIN_US + 900_000):
        trips = store.counts()["trips"]
        assert store.decide(both, now) == memory.decide(both, now)
    assert store.counts()["trips"] == trips


def test_charges_by_other_nodes_are_seen_within_a_second(redis7: Server) -> None:
    memory = MemoryStore()
    wide, narrow = (
        meter("others", rpu=5, unit_us=MINUTE_US),
        meter("mine", rpu=1, unit_us=MINUTE_US),
    )
    both = [Charge(wide, "k"), Charge(narrow, "k")]
    with opened(redis7.url) as one, opened(redis7.url) as other:
        for _ in range(2):
            assert one.decide(both, BEGIN_US) == memory.decide(both, BEGIN_US)
        rest = [Charge(wide, "k", 4)]
        assert other.decide(rest, BEGIN_US) == memory.decide(rest, BEGIN_US)
        later = BEGIN_US + SECOND_US + 1
        assert one.decide(both, later) == memory.decide(both, later)


def test_a_charge_that_was_under_way_is_not_overlooked() -> None:
    """The store decided the denial first, and the reply to the charge came first."""
    denials = DenyCache()
    wide, narrow = meter("wide", rpu=2), meter("narrow", rpu=1)
    full, _ = narrow.decide(None, narrow.params, 1, BEGIN_US)
    outcomes = [wide.decide(None, wide.params, 0, BEGIN_US)[1], _denied_outcome(narrow, full)]
    decisions = [_decision(some, one) for some, one in zip((wide, narrow), outcomes, strict=True)]
    states = {b"wide": None, b"narrow": full}
    charges = [Charge(wide, "k"), Charge(narrow, "k")]
    keys = [b"wide", b"narrow"]
    asking = denials.begin(BEGIN_US)
    denials.forget(b"wide")
    denials.remember(decisions, keys, states, asking)
    assert denials.answer(charges, keys, BEGIN_US) is None
    assert denials.answer(charges[1:], keys[1:], BEGIN_US) == decisions[1:]
    denials.remember(decisions, keys, states, denials.begin(BEGIN_US))
    assert denials.answer(charges, keys, BEGIN_US) == decisions
    denials.forget(b"wide")
    assert denials.answer(charges, keys, BEGIN_US) is None


def test_peeks_that_wait_to_be_sent_are_sent_though_a_denial_arrives(redis7: Server) -> None:
    some = meter("peeks in line", rpu=3, unit_us=MINUTE_US)

    async def ask(store: RedisStore) -> list[Decision]:
        decide, peek = store.asynchronous.decide, store.asynchronous.peek
        charges = [Charge(some, "k")]
        asked = [verb(charges, BEGIN_US) for _ in range(2_000) for verb in (decide, peek)]
        return [one for (one,) in await asyncio.gather(*asked)]

    with opened(redis7.url) as store:
        decisions = asyncio.run(ask(store))
        assert store.counts()["deny_cache_hits"] > 0
    assert sum(map(bool, decisions[::2])) == 3
    assert [one.remaining for one in decisions[1::2]] == sorted(
        (one.remaining for one in decisions[1::2]), reverse=True
    )
    assert decisions[-1] == decisions[-2]


def test_requests_with_other_limits_beside_are_sent_though_a_denial_arrives(
    redis7: Server,
) -> None:
    """Each of them needs the store, and none waits for ever."""
    everyone = meter("everyone", rpu=3, unit_us=MINUTE_US)
    own = meter("own", rpu=5, unit_us=MINUTE_US)

    async def ask(store: RedisStore) -> list[list[Decision]]:
        decide = store.asynchronous.decide
        asked = [
            decide([Charge(everyone, "all"), Charge(own, f"k{number}")], BEGIN_US)
            for number in range(1_000)
        ]
        return await asyncio.gather(*asked)

    with opened(redis7.url) as store:
        answers = asyncio.run(ask(store))
    assert sum(map(all, answers)) == 3
    assert {its.remaining for shared, its in answers if not shared} == {5}


def test_it_still_answers_when_the_store_is_lost() -> None:
    some = meter("lost", rpu=2, unit_us=MINUTE_US)
    with Server(REDIS_7) as server, opened(server.url, budget_us=PATIENT_US) as store:
        while store.decide([Charge(some, "k")])[0]:
            pass
        server.kill()
        until(lambda: store.decide([Charge(some, "other", 0)])[0].degraded, "the loss is noticed")
        degraded = store.counts()["degraded"]
        (denial,) = store.decide([Charge(some, "k")])
        assert not denial.allowed, "the loss of the store gives a new burst to who has used theirs"
        assert not denial.degraded, "it was the store's own word"
        assert store.counts()["degraded"] == degraded


def test_limits_beside_a_denial_are_degraded_when_the_store_is_lost() -> None:
    wide, narrow = [meter(name, rpu=rpu, unit_us=MINUTE_US) for name, rpu in (("w", 9), ("n", 1))]
    both = [Charge(wide, "k"), Charge(narrow, "k")]
    with Server(REDIS_7) as server, opened(server.url, budget_us=PATIENT_US) as store:
        while all(store.decide(both)):
            pass
        store.decide([Charge(wide, "k")])  # so that what it has is not known any more
        server.kill()
        until(lambda: store.decide([Charge(wide, "other", 0)])[0].degraded, "the loss is noticed")
        decisions = store.decide(both)
        assert [bool(one) for one in decisions] == [True, False]
        assert [one.degraded for one in decisions] == [True, False]


def _document(rules: dict[str, Any], scope: str) -> dict[str, Any]:
    """The rules with a scope and windows for all."""
    limits = rules.get("limits", [rules])
    return {"defaults": {"scope": scope, "algo": "W"}, "limits": limits}


def _denied_outcome(some: CounterSpec, state: Any) -> tuple[bool, int, int, int, int]:
    return some.decide(state, some.params, 1, BEGIN_US)[1]


def _decision(some: CounterSpec, outcome: tuple[bool, int, int, int, int]) -> Decision:
    return Decision(outcome, some.params.limit, "k", 1, BEGIN_US)
