"""The table in private memory: what it takes, and what it gives back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from diana import Limiter
from diana.core.counter import meter_from_limit
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.memory.c_store import CMemoryStore
from diana.testing import FakeClock
from tests.stores.native.opened import BEGIN_US

GROWTH = """
import sys
from diana import Limiter

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

limiter = Limiter("1000/day", algo=sys.argv[1])
take, count = limiter.take, 1_000_000
take("first")
before = resident()
for number in range(count):
    take(f"user:{number:016d}")
print((resident() - before) / count)
limiter._limits.store.clear()
print((resident() - before) / count)
"""


@pytest.mark.parametrize("code", ["TB", "LB", "W"])
def test_a_million_keys_take_at_most_64_bytes_each_and_give_them_back(code: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", GROWTH, code], capture_output=True, text=True, check=True
    ).stdout
    full, empty = map(float, said.split())
    assert full <= 64
    assert empty <= 8


def test_what_a_flood_took_is_given_back_with_the_last_key() -> None:
    clock, store = FakeClock(BEGIN_US), CMemoryStore()
    limiter = Limiter("10/second", clock=clock, store=store, name="flood")
    for number in range(10_000):
        limiter.take(f"{number}")
    clock.advance(3_600)
    # A look at nothing is a visit too: it forgets a few each time.
    for _ in range(2_000):
        limiter.take("nobody", cost=0)
    assert len(store) == 0
    assert store._counters.statistics()["slots"] < 100
    assert [limiter.take("k").remaining for _ in range(3)] == [9, 8, 7]


def test_thousands_of_limits_share_a_table() -> None:
    """More than can be told apart when room is needed: they are counted all the same."""
    clock, store = FakeClock(BEGIN_US), CMemoryStore(max_keys=20_000)
    limiters = [Limiter("2/day", clock=clock, store=store, name=f"n{n}") for n in range(6_000)]
    for _ in range(2):
        assert all(limiter.take("k") for limiter in limiters)
    assert not any(limiter.take("k") for limiter in limiters)
    assert len(store) == 6_000
    for number in range(30_000):
        limiters[0].take(f"flood {number}")
    assert len(store) == 20_000
    clock.advance(90_000)
    for _ in range(4_000):
        limiters[0].take("nobody", cost=0)
    assert len(store) == 0


def test_a_key_is_text_of_any_kind() -> None:
    limiter = Limiter("1/day", clock=FakeClock(BEGIN_US))
    keys = ["", "\ud800", "\udfff", "é", "e\u0301", "\U0001f511", "k" * 100_000]
    assert all(limiter.take(key) for key in keys)
    assert not any(limiter.take(key) for key in keys)
    assert limiter.take("\ud800\udfff")


def test_a_moment_that_is_none_is_an_error() -> None:
    store = CMemoryStore()
    meter = meter_from_limit("l", Limit(1, 10**6), algorithms()["TB"], {})
    wrong: dict[object, type[Exception]] = {1.5: TypeError, 2**60: OverflowError, "1": TypeError}
    for moment, error in wrong.items():
        take = store.bind(meter, lambda: moment)  # type: ignore[arg-type, return-value] # noqa: B023
        with pytest.raises(error):
            take("k")
        with pytest.raises(error):
            store.decide([(meter, "k", 1)], moment)  # type: ignore[arg-type]
    assert len(store) == 0
