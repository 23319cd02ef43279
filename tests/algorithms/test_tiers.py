"""One counter, several tiers, in any order: never more than the highest tier promises, in Python and in Lua alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diana.core.counter import CounterGroup, CounterSpec, params_of_tiers
from diana.core.limit import Limit
from diana.core.node_share import divided
from diana.runtime.entry_points import algorithms
from diana.stores.memory import GRACE_US, MemoryStore

MINUTE = 60_000_000
BEGIN = 1_700_000_000_000_000
CODES = ("LB", "SL", "SW", "TB", "W")


def tiers_of(code: str, *tiers: tuple[Limit, dict[str, Any]]) -> list[CounterSpec]:
    """As the compiler makes them: one id, one family."""
    algorithm, family = algorithms()[code], CounterGroup()
    family.tiers = tiers
    meters = [
        CounterSpec(f"test|{code}", limit, algorithm, params, options, family=family)
        for (limit, options), params in zip(tiers, params_of_tiers(algorithm, tiers), strict=True)
    ]
    for meter in meters:
        family.include(meter)
    return meters


def test_alternating_600_and_60_a_minute_passes_no_more_than_600_a_minute_promises() -> None:
    free, pro = tiers_of("TB", (Limit(60, MINUTE), {}), (Limit(600, MINUTE), {}))
    store = MemoryStore()
    passed = 0
    for second in range(60):
        for meter in (free, pro):
            for _ in range(700):
                (decision,) = store.decide([(meter, "alice", 1)], BEGIN + second * 1_000_000)
                passed += decision.allowed
    assert passed <= pro.algorithm.promise(pro.params, 59_000_001)


histories = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(st.just(0), st.integers(0, 3_000_000), st.integers(0, 90_000_000)),
        st.integers(0, 40),
    ),
    min_size=1,
    max_size=60,
)
limits = st.one_of(st.integers(1, 20), st.sampled_from((60, 97, 600, 999_983)))


@pytest.mark.parametrize("code", CODES)
def test_no_more_passes_than_the_highest_tier_promises(code: str) -> None:
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.lists(limits, min_size=3, max_size=3), histories)
    def law(rpus: list[int], history: list[tuple[int, int, int]]) -> None:
        if code == "SL":
            rpus = [min(rpu, 100_000) for rpu in rpus]
        tiers: list[tuple[Limit, dict[str, Any]]] = [(Limit(rpu, MINUTE), {}) for rpu in rpus]
        meters = tiers_of(code, *tiers)
        highest = max(meters, key=lambda meter: meter.limit.rpu)
        state, now, admitted = None, BEGIN, []
        for tier, gap, cost in history:
            now += gap
            meter = meters[tier]
            after, outcome = meter.decide(state, meter.params, cost, now)
            if outcome[0] and cost:
                admitted.append((now, cost))
            assert outcome[1] >= 0
            assert meter.decide(state, meter.params, 0, now)[1][0]
            state = after if cost else state
        for first in range(len(admitted)):
            total = 0
            for when, cost in admitted[first:]:
                total += cost
                interval = when - admitted[first][0] + 1
                assert total <= highest.algorithm.promise(highest.params, interval)

    law()


@pytest.mark.parametrize("code", CODES)
def test_an_upgrade_keeps_what_was_counted(code: str) -> None:
    free, pro = tiers_of(code, (Limit(6, MINUTE), {}), (Limit(60, MINUTE), {}))
    if code == "LB":
        free, pro = tiers_of(
            code, (Limit(6, MINUTE), {"burst": 5}), (Limit(60, MINUTE), {"burst": 59})
        )
    store = MemoryStore()
    for _ in range(6):
        assert store.decide([(free, "alice", 1)], BEGIN)[0]
    assert not store.decide([(free, "alice", 1)], BEGIN)[0]
    (upgraded,) = store.decide([(pro, "alice", 1)], BEGIN)
    assert (upgraded.allowed, upgraded.remaining) == (True, 53)
    (back,) = store.decide([(free, "alice", 1)], BEGIN)
    assert (back.allowed, back.remaining) == (False, 0)


def test_python_and_lua_decide_alike_whatever_the_order_of_tiers(valkey_url: str) -> None:
    """Random alternation, with bursts of their own, in one scale."""
    from random import Random

    from diana.stores.redis.store import RedisStore

    redis = RedisStore.from_url(valkey_url, budget_us=10_000_000)
    random = Random(7)
    try:
        for code in CODES:
            bursts = code in ("TB", "LB")
            meters = tiers_of(
                code,
                (Limit(7, MINUTE), {"burst": 12} if bursts else {}),
                (Limit(60, MINUTE), {}),
                (Limit(600, MINUTE), {"burst": 90} if bursts else {}),
            )
            memory, now = MemoryStore(), BEGIN
            for _ in range(400):
                now += random.choice((0, 1, 100_000, 1_000_000, 20_000_000))
                charge = (random.choice(meters), code, random.choice((1, 1, 5, 40)))
                (here,), (there,) = memory.decide([charge], now), redis.decide([charge], now)
                assert here.outcome == there.outcome, (code, charge)
    finally:
        redis.close()


def test_a_share_of_a_tier_is_bounded_by_the_share_of_the_highest() -> None:
    free, pro = (
        divided(meter, 4)
        for meter in tiers_of("TB", (Limit(6, MINUTE), {}), (Limit(600, MINUTE), {}))
    )
    state, passed = None, 0
    for second in range(60):
        for meter in (free, pro):
            for _ in range(200):
                state, outcome = meter.decide(state, meter.params, 1, BEGIN + second * 1_000_000)
                passed += outcome[0]
    assert passed <= pro.algorithm.promise(pro.params, 59_000_001)


def test_a_key_is_not_forgotten_by_the_pace_of_a_faster_tier() -> None:
    """The store tidies up by itself, whichever tier was asked last."""
    free, pro = tiers_of("TB", (Limit(60, 60 * MINUTE), {}), (Limit(600, 60 * MINUTE), {}))
    store = MemoryStore()
    store.decide([(free, "alice", 60)], BEGIN)
    begin = BEGIN + 60_000_000
    for step in range(300):
        # By the faster pace alice would be as good as new after six minutes and the grace.
        store.decide([(pro, f"other {step}", 1)], begin + step * (6 * MINUTE + 2 * GRACE_US) // 300)
    later = begin + 6 * MINUTE + 2 * GRACE_US
    assert store.decide([(free, "alice", 60)], later)[0].allowed is False
