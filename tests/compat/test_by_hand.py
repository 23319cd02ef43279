"""What people write on Redis by hand."""

from __future__ import annotations

import pytest

from diana import ConfigError
from diana.compat import Funnel, LuaBucket, is_action_allowed, is_below
from diana.plugins import MemoryStore
from diana.testing import FakeClock

START_US = 1_700_000_000_000_000


def test_a_funnel_leaks_and_tells_its_space() -> None:
    clock = FakeClock(START_US)
    funnel = Funnel(3, 0.5, clock=clock)
    assert funnel.left_quota == 3
    assert [funnel.watering() for _ in range(4)] == [True, True, True, False]
    assert funnel.left_quota == 0
    clock.advance(1.9)
    assert not funnel.watering()
    clock.advance(0.1)
    assert funnel.watering()
    clock.advance(600)
    assert funnel.left_quota == 3
    assert not funnel.watering(4)
    assert funnel.watering(3)


def test_funnels_are_apart_unless_they_share_store_name_and_key() -> None:
    store, clock = MemoryStore(), FakeClock(START_US)
    assert all(Funnel(1, 1, clock=clock).watering() for _ in range(3))
    shared = [Funnel(1, 1, key="alice", store=store, clock=clock) for _ in range(2)]
    assert [funnel.watering() for funnel in shared] == [True, False]


@pytest.mark.parametrize("rate", [0, -1, "fast", 1e-9, float("nan"), float("inf")])
def test_a_leak_rate_that_cannot_be_meant(rate: float) -> None:
    with pytest.raises(ConfigError, match="leak_rate"):
        Funnel(1, rate)


def test_so_many_times_in_so_many_seconds_by_address() -> None:
    store, clock = MemoryStore(), FakeClock(START_US)
    clock.advance(7)
    for second, passes in [(0, True), (5, True), (9, False), (10, True), (10, True), (10, False)]:
        clock.set(START_US + 7_000_000 + second * 1_000_000)
        assert is_below(store, "192.0.2.1", 2, 10, clock=clock) is passes
    assert is_below(store, "192.0.2.2", 2, 10, clock=clock)


def test_an_action_so_often_in_any_period() -> None:
    store, clock = MemoryStore(), FakeClock(START_US)
    for second, passes in [(0, True), (9, True), (9, False), (10, True), (18, False), (19, True)]:
        clock.set(START_US + second * 1_000_000)
        assert is_action_allowed(store, "alice", "reply", 10, 2, clock=clock) is passes
    assert is_action_allowed(store, "alice", "like", 10, 2, clock=clock)


def test_users_and_actions_are_never_mixed_up() -> None:
    store, clock = MemoryStore(), FakeClock(START_US)
    assert is_action_allowed(store, "a", "b:c", 10, 1, clock=clock)
    assert is_action_allowed(store, "a:b", "c", 10, 1, clock=clock)


def test_a_bucket_with_init_acquire_and_delete() -> None:
    clock = FakeClock(START_US)
    bucket = LuaBucket(MemoryStore(), clock=clock)
    assert bucket.acquire("orders") == 0
    assert bucket.init("orders", 2, 0.5) == 1
    assert [bucket.acquire("orders") for _ in range(3)] == [1, 1, -1]
    clock.advance(2)
    assert [bucket.acquire("orders") for _ in range(2)] == [1, -1]
    bucket.init("orders", 4, 1)
    assert [bucket.acquire("orders") for _ in range(3)] == [1, 1, -1], "two are taken already"
    assert bucket.delete("orders") == 1
    assert bucket.delete("orders") == 0
    bucket.init("orders", 2, 0.5)
    assert bucket.acquire("orders", 2) == 1
