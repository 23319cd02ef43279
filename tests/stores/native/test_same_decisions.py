"""The same histories through the algorithms in Python and the kernels in C: identical decisions, to the last field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diana.core.charge import Charge, decide_all_or_nothing
from diana.core.contracts import State, Store
from diana.core.counter import CounterGroup, CounterSpec, meter_from_limit, params_of_tiers
from diana.core.decision import Decision
from diana.core.limit import ConcurrencyLimit, Limit
from diana.runtime.entry_points import algorithms
from diana.testing import store_contract
from tests.stores.native.opened import BEGIN_US, SECOND_US, memory, zone

MANY = settings(
    max_examples=300,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
CODES = ("LB", "SL", "SW", "TB", "W")
GAPS = st.one_of(
    st.integers(0, 3), st.integers(0, SECOND_US), st.integers(-3 * SECOND_US, 3 * SECOND_US)
)
COSTS = st.one_of(st.integers(0, 4), st.sampled_from((50, 2**53 - 1)))
STEPS = st.lists(
    st.tuples(GAPS, COSTS, st.sampled_from("ab"), st.booleans()), min_size=1, max_size=24
)
UNITS = st.sampled_from((1, 1_000, SECOND_US, 86_400 * SECOND_US))
RATES = st.sampled_from((1, 3, 7, 97, 999_983, 10**9))


@pytest.fixture(scope="module", params=["memory", "zone"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with memory() if request.param == "memory" else zone() as store:
        yield store


class InPython:
    """What the algorithms say, as the definition of right."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], State | None] = {}

    def decide(self, charges: list[Charge], now: int) -> list[Decision]:
        places = [(meter.id, key) for meter, key, _ in charges]
        decisions, after = decide_all_or_nothing(
            charges, [self.states.get(place) for place in places], now
        )
        for place, state in zip(places, after, strict=True):
            if state is not None:
                self.states[place] = state
        return decisions

    def refund(self, charges: list[Charge], at: int, now: int) -> None:
        for meter, key, cost in charges:
            state = self.states.get((meter.id, key))
            if state is not None:
                self.states[meter.id, key] = meter.algorithm.refund(
                    state, meter.params, cost, at, now
                )


def replay(
    store: Store, meters_at: list[list[CounterSpec]], history: list[tuple[int, int, str, bool]]
) -> None:
    """Both get the same calls; now and then any of the charges is refunded."""
    python, now = InPython(), BEGIN_US
    charged: list[tuple[list[Charge], int]] = []
    for step, (gap, cost, key, gives_back) in enumerate(history):
        now += gap
        if gives_back and charged:
            back, at = charged.pop(cost % len(charged))
            python.refund(back, at, now)
            store.refund(back, at, now)
        meters = meters_at[step * len(meters_at) // len(history)]
        charges = [Charge(meter, key, cost) for meter in meters]
        wanted = python.decide(charges, now)
        assert store.peek([Charge(meter, key, 0) for meter in meters], now) is not None
        found = store.decide(charges, now)
        assert found == wanted
        assert [type(one) for one in found] == [Decision] * len(found)
        if all(found) and cost:
            charged.append((charges, now))


@pytest.mark.parametrize("code", CODES)
def test_random_histories_of_one_limit_that_is_edited(code: str, store: Store) -> None:
    runs = iter(range(10**9))
    rates = st.sampled_from((1, 3, 7, 97, 9_999)) if code == "SL" else RATES

    @MANY
    @given(
        st.sampled_from(algorithms()[code].examples),
        st.lists(rates, min_size=1, max_size=3),
        UNITS,
        STEPS,
    )
    def same(
        options: dict[str, Any],
        edits: list[int],
        unit_us: int,
        history: list[tuple[int, int, str, bool]],
    ) -> None:
        name = f"one {code} {next(runs)}"
        try:
            versions = [
                [meter_from_limit(name, Limit(rpu, unit_us), algorithms()[code], options)]
                for rpu in edits
            ]
        except ValueError:  # numbers that no rule may have
            return
        replay(store, versions, history)

    same()


def test_random_histories_of_several_limits_at_once(store: Store) -> None:
    runs = iter(range(10**9))
    kinds = st.tuples(st.sampled_from(CODES), st.sampled_from([1, 3, 7]))

    @MANY
    @given(st.lists(kinds, min_size=2, max_size=5, unique_by=lambda kind: kind[0]), STEPS)
    def same(limits: list[tuple[str, int]], history: list[tuple[int, int, str, bool]]) -> None:
        name = f"several {next(runs)}"
        meters = [
            meter_from_limit(name, Limit(rpu, SECOND_US), algorithms()[code], {})
            for code, rpu in limits
        ]
        replay(store, [meters], history)

    same()


@pytest.mark.parametrize("code", CODES)
def test_random_histories_of_tiers(code: str, store: Store) -> None:
    runs = iter(range(10**9))

    @MANY
    @given(st.lists(st.sampled_from((1, 6, 60, 600)), min_size=2, max_size=3), STEPS)
    def same(rates: list[int], history: list[tuple[int, int, str, bool]]) -> None:
        algorithm, family, id = algorithms()[code], CounterGroup(), f"tiers {code} {next(runs)}"
        family.tiers = tuple((Limit(rpu, 60 * SECOND_US), {}) for rpu in rates)
        meters = [
            CounterSpec(id, limit, algorithm, params, {}, family=family)
            for (limit, _), params in zip(
                family.tiers, params_of_tiers(algorithm, family.tiers), strict=True
            )
        ]
        for meter in meters:
            family.include(meter)
        # In turns, not one after the other: a client changes its tier as it likes.
        replay(store, [[meters[place % len(meters)]] for place in range(len(history))], history)

    same()


def test_peeking_shows_each_limit_that_denies_with_and_without_a_kernel(store: Store) -> None:
    meters = [
        meter_from_limit("peeked", Limit(1, SECOND_US), algorithms()["W"], {}),
        meter_from_limit("peeked", ConcurrencyLimit(1, SECOND_US), algorithms()["C"], {}),
        meter_from_limit("peeked", Limit(5, SECOND_US), algorithms()["TB"], {}),
        meter_from_limit(
            "peeked", ConcurrencyLimit(5, SECOND_US), algorithms()["C"], {"retry": "1s"}
        ),
    ]
    for some in (meters[:2], meters[1:3], [meters[0], meters[3]], meters[:3]):
        charges = [Charge(meter, "k", 2) for meter in some]
        assert (
            store.peek(charges, BEGIN_US)
            == decide_all_or_nothing(charges, [None] * len(some), BEGIN_US)[0]
        )


def test_it_keeps_the_contract_in_a_zone_with_the_algorithms_of_others() -> None:
    with zone() as store:
        names = iter(range(10**9))

        def opened() -> Store:
            next(names)
            store.clear()  # type: ignore[attr-defined]
            return store

        store_contract(opened)


def test_a_long_log_is_the_same_as_in_python(store: Store) -> None:
    some = meter_from_limit("long", Limit(2_000, SECOND_US), algorithms()["SL"], {})
    python, now = InPython(), BEGIN_US
    for step in range(6_000):
        now += (step * 7_919) % 700
        charge = [Charge(some, "k", 1 + step % 3)]
        assert store.decide(charge, now) == python.decide(charge, now)
        if step % 500 == 499:
            now -= 2 * SECOND_US if step % 1_000 == 999 else 0
            python.refund(charge, now, now)
            store.refund(charge, now, now)
