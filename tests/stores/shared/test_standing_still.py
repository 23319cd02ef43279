"""In a zone in C no lock is held while Python decides: a process may stand still meanwhile, and then its time is not a clock set back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.zone import c_zone as native_zone
from diana.stores.zone.store import SharedStore
from tests.stores.shared.zones import zone_name

SECOND = 1_000_000


class Clock:
    """In ns, in place of the machine's."""

    def __init__(self) -> None:
        self.now = 10**15

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(native_zone, "monotonic_ns", found)
    return found


def places(name: str = "places") -> CounterSpec:
    return meter_from_limit(name, Limit(5, 60 * SECOND), algorithms()["C"], {})


def moment(meter: CounterSpec, decision: Any) -> int:
    algorithm: Any = meter.algorithm
    return int(algorithm.moment_of(meter.params, decision.outcome, decision.at))


def slow(meter: CounterSpec, meanwhile: Callable[[], None]) -> CounterSpec:
    """The same counter, by a thread that stands still the first time it decides."""
    found = CounterSpec(meter.id, meter.limit, meter.algorithm, meter.params, meter.options)
    decide = meter.decide
    stood: list[bool] = []

    def decide_slowly(*arguments: Any) -> Any:
        if not stood:
            stood.append(True)
            meanwhile()
        return decide(*arguments)

    found.decide = decide_slowly
    return found


def test_places_that_others_took_meanwhile_are_given_back(time: Clock) -> None:
    with zone_name() as name:
        zone, meter = SharedStore(name, 4 << 20, kind="native"), places()
        others = []

        def meanwhile() -> None:
            time.now += 2 * 10**9
            others.append(zone.decide([(meter, "k", 1)])[0])

        (mine,) = zone.decide([(slow(meter, meanwhile), "k", 1)])
        for one in (mine, *others):
            assert one.allowed
            zone.refund([(meter, "k", 1)], moment(meter, one))
        assert zone.peek([(meter, "k", 1)])[0].remaining == 4


@pytest.mark.parametrize("act", ["refund", "renew"])
def test_so_are_they_by_one_who_gives_back_or_renews(act: str, time: Clock) -> None:
    with zone_name() as name:
        zone, meter = SharedStore(name, 4 << 20, kind="native"), places()
        (first,) = zone.decide([(meter, "k", 1)])
        at, others = moment(meter, first), []
        algorithm: Any = meter.algorithm
        stood: list[bool] = []

        class Slow:
            """The algorithm, on a thread that stands still."""

            def __getattr__(self, name: str) -> Any:
                return getattr(algorithm, name)

        def stand_still(*arguments: Any) -> Any:
            if not stood:
                stood.append(True)
                time.now += 2 * 10**9
                others.append(zone.decide([(meter, "k", 1)])[0])
            return getattr(algorithm, act)(*arguments)

        slowly = Slow()
        setattr(slowly, act, stand_still)
        late: Any = CounterSpec(meter.id, meter.limit, slowly, meter.params, meter.options)
        if act == "refund":
            zone.refund([(late, "k", 1)], at)
        else:
            zone.refund([(meter, "k", 1)], zone.renew((late, "k", 1), at))
        zone.refund([(meter, "k", 1)], moment(meter, others[0]))
        assert zone.peek([(meter, "k", 1)])[0].remaining == 4
