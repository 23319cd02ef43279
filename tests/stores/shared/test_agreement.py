"""A zone decides like memory does: the same histories, with edits, tiers, refunds, resets and clocks that step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diana.core.charge import Charge
from diana.core.counter import CounterGroup, CounterSpec, meter_from_limit, params_of_tiers
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.memory import GRACE_US, MemoryStore
from diana.stores.zone.store import SharedStore, zone_kind
from tests.stores.shared.zones import zone_name

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000

RUNS = iter(range(10**9))

KINDS = ["python", "native"]


@pytest.fixture(scope="module", params=KINDS)
def store(request: pytest.FixtureRequest) -> Iterator[SharedStore]:
    with pytest.MonkeyPatch.context() as patch, zone_name() as name:
        if request.param == "python":
            patch.setenv("DIANA_NATIVE", "0")
            assert zone_kind().kind == "python"
        yield SharedStore(name, 4 << 20)


def meters_of(code: str, run: int, options: dict[str, Any]) -> list[CounterSpec]:
    """One counter under three edits, and under two tiers that share a scale."""
    algorithm = algorithms()[code]
    limits = [Limit(5, SECOND_US), Limit(3, SECOND_US), Limit(40, SECOND_US)]
    edits = [meter_from_limit(f"edit{run}", limit, algorithm, options) for limit in limits]
    terms: list[tuple[Limit, dict[str, Any]]] = [
        (Limit(4, SECOND_US), {}),
        (Limit(9, SECOND_US), {}),
    ]
    family = CounterGroup()
    family.tiers = tuple(terms)
    tiers = []
    for (limit, own), params in zip(terms, params_of_tiers(algorithm, terms), strict=True):
        id = meter_from_limit(f"tier{run}", limit, algorithm, {}).id
        tiers.append(CounterSpec(id, limit, algorithm, params, own, "local", family))
        family.include(tiers[-1])
    return edits + tiers


GAPS = st.one_of(
    st.integers(0, 400_000),
    st.integers(0, 3 * SECOND_US),
    st.sampled_from([-500_000, -3 * SECOND_US]),
)
STEPS = st.tuples(
    GAPS,
    st.sampled_from(["decide", "decide", "decide", "both", "peek", "refund", "reset"]),
    st.integers(0, 4),
    st.integers(0, 7),
    st.sampled_from("ab"),
)


@pytest.mark.parametrize("code", ["TB", "LB", "W", "SW", "SL"])
def test_the_same_histories_give_the_same_decisions(store: SharedStore, code: str) -> None:
    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(algorithms()[code].examples), st.lists(STEPS, max_size=40))
    def same(options: dict[str, Any], history: list[tuple[int, str, int, int, str]]) -> None:
        memory, run = MemoryStore(), next(RUNS)
        meters = meters_of(code, run, options)
        beside = meter_from_limit(f"beside{run}", Limit(20, SECOND_US), algorithms()["SL"], {})
        now, charged = BEGIN_US, BEGIN_US
        for gap, verb, which, cost, key in history:
            now = min(now + gap, BEGIN_US + GRACE_US)  # until memory forgets a key for good
            charge = Charge(meters[which], key, cost)
            if verb in ("decide", "both"):
                charges = [charge] if verb == "decide" else [Charge(beside, key, 2), charge]
                found, wanted = store.decide(charges, now), memory.decide(charges, now)
                assert found == wanted
                charged = now if all(found) else charged
            elif verb == "peek":
                assert store.peek([charge], now) == memory.peek([charge], now)
            elif verb == "refund":
                store.refund([charge], charged, now)
                memory.refund([charge], charged, now)
            else:
                store.reset(charge.meter, key)
                memory.reset(charge.meter, key)

    same()


def test_a_long_log_decides_the_same_as_it_grows_and_runs_off(store: SharedStore) -> None:
    memory = MemoryStore()
    meter = meter_from_limit("long", Limit(3_000, SECOND_US), algorithms()["SL"], {})
    now = BEGIN_US
    for step in range(9_000):
        now += 200 if step % 1_000 else 700_000
        charge = [Charge(meter, "k", 1 + step % 3)]
        assert store.decide(charge, now) == memory.decide(charge, now)
        if step % 500 == 0:
            store.refund(charge, now - 2_000, now)
            memory.refund(charge, now - 2_000, now)


def test_the_longest_log_fits(store: SharedStore) -> None:
    meter = meter_from_limit("longest", Limit(10_000, 3_600 * SECOND_US), algorithms()["SL"], {})
    for step in range(10_000):
        assert all(store.decide([Charge(meter, "k")], BEGIN_US + step))
    (denied,) = store.decide([Charge(meter, "k")], BEGIN_US + 10_000)
    assert (denied.allowed, denied.retry_after) == (False, 3_600 - 0.01)
    assert all(store.decide([Charge(meter, "k")], BEGIN_US + 3_600 * SECOND_US))
