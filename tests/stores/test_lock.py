"""A signal handler that interrupts a decision gets an error instead of a deadlock, and the decision goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from diana.core.charge import Charge
from diana.core.contracts import Store
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.errors import ReentrancyError
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.memory.python_store import PythonMemoryStore
from diana.stores.zone.python.python_zone import PythonZone
from diana.stores.zone.zone_file import open_zone_file
from diana.stores.zone.zone_size import SMALLEST_SIZE
from diana.testing import FakeClock
from tests.stores.shared.zones import zone_name

CLOCK = FakeClock()


@pytest.fixture(params=["memory", "zone"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield PythonMemoryStore()
        return
    with zone_name() as name:
        yield PythonZone(open_zone_file(name, "python", SMALLEST_SIZE, PythonZone.lay_out))


class Interrupted:
    """Decides as the algorithm does, but a signal arrives in between, while the store's lock is held."""

    def __init__(self, meter: CounterSpec) -> None:
        self._decide = meter.decide

    def __call__(self, *arguments: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return self._decide(*arguments)


@pytest.fixture
def handled() -> Iterator[list[Any]]:
    """Functions for the signal handler to call; each is replaced by its error or its result."""
    calls: list[Any] = []

    def handle(*_: object) -> None:
        for index, call in enumerate(calls):
            if callable(call):
                try:
                    calls[index] = call()
                except ReentrancyError as error:
                    calls[index] = error

    previous = signal.signal(signal.SIGUSR1, handle)
    yield calls
    signal.signal(signal.SIGUSR1, previous)


def meter_of_window() -> CounterSpec:
    return meter_from_limit("lock", Limit(10, 1_000_000), algorithms()["W"], {})


def test_a_call_that_interrupts_another_on_the_same_store_raises(
    store: Store, handled: list[Any]
) -> None:
    meter, interrupted, now = meter_of_window(), meter_of_window(), CLOCK()
    interrupted.decide = Interrupted(interrupted)
    charge = Charge(meter, "a", 1)
    handled += [
        lambda: store.decide([charge], now),
        lambda: store.peek([charge], now),
        lambda: store.refund([charge], now, now),
        lambda: store.reset(meter, "a"),
        lambda: store.bind(meter, CLOCK)("a"),
    ]
    (decision,) = store.decide([Charge(interrupted, "a", 1)], now)
    assert [type(call) for call in handled] == [ReentrancyError] * 5
    assert "call it later" in str(handled[0])
    assert decision.remaining == 9
    assert store.decide([charge], now)[0].remaining == 8


def test_a_call_on_another_store_is_not_refused(store: Store, handled: list[Any]) -> None:
    other, interrupted = PythonMemoryStore(), meter_of_window()
    interrupted.decide = Interrupted(interrupted)
    handled.append(lambda: other.decide([Charge(meter_of_window(), "a", 1)], CLOCK())[0])
    assert store.decide([Charge(interrupted, "a", 1)], CLOCK())[0]
    assert handled[0].remaining == 9
