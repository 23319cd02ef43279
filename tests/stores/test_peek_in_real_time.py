"""What `peek` says of a moment is of that very moment, also where limits are counted in C and in Python together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diana.core.charge import Charge
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.memory import MemoryStore
from diana.stores.zone.store import SharedStore
from tests.stores.shared.zones import zone_name

HOUR_US = 3_600_000_000


@pytest.fixture(params=["memory", "zone"])
def store(request: pytest.FixtureRequest) -> Iterator[MemoryStore | SharedStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with zone_name() as name:
        zone = SharedStore(name, 1 << 20)
        yield zone
        zone.close()


def meter(code: str, rpu: int) -> CounterSpec:
    return meter_from_limit(f"{code} {rpu}", Limit(rpu, HOUR_US), algorithms()[code], {})


@pytest.mark.parametrize("denied", ["SL", "TB"])
@pytest.mark.parametrize("passing", ["SL", "TB"])
def test_what_passes_beside_a_denial_is_told_as_of_the_moment_that_the_decision_names(
    store: MemoryStore | SharedStore, denied: str, passing: str
) -> None:
    used_up, other = meter(denied, 1), meter(passing, 3)
    charges = [Charge(used_up, "k"), Charge(other, "k")]
    first = store.decide(charges)
    assert all(first)
    ends = first[1].at + first[1].outcome[3]
    for _ in range(50):
        denial, beside = store.peek(charges)
        assert not denial
        assert beside
        assert beside.at + beside.outcome[3] == ends
        assert beside.cost == 1
