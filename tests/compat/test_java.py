"""What Java's limiters decide, as tables and as models of what their published scripts do; ours decides the same."""

from __future__ import annotations

import random

import pytest

from diana import ConfigError, Pacer
from diana.compat import (
    OVERALL,
    PER_CLIENT,
    RequestRateLimiter,
    RRateLimiter,
    rate_limiter_controller,
    warm_up_controller,
)
from diana.plugins import MemoryStore
from diana.testing import FakeClock

START_US = 1_700_000_000_000_000


class SpringModel:
    """Tokens and the second of the last visit, in fractions: kept to powers of two here, where a double is exact."""

    def __init__(self, rate: int, capacity: int) -> None:
        self.rate, self.capacity = rate, capacity
        self.tokens, self.visited = float(capacity), 0.0

    def take(self, now: float, requested: int) -> tuple[bool, int]:
        filled = min(self.capacity, self.tokens + max(0.0, now - self.visited) * self.rate)
        allowed = filled >= requested
        self.tokens, self.visited = filled - requested if allowed else filled, now
        return allowed, int(self.tokens)


@pytest.mark.parametrize("seed", range(20))
def test_spring_and_ours_decide_alike(seed: int) -> None:
    chance = random.Random(seed)
    rate, capacity = 2 ** chance.randrange(4), chance.randrange(1, 20)
    cost = chance.randrange(1, capacity + 1)
    clock = FakeClock(START_US)
    model = SpringModel(rate, capacity)
    ours = RequestRateLimiter(rate, capacity, cost, clock=clock)
    for _ in range(300):
        clock.advance(chance.choice([0, 0, 1 / 64, 1 / 4, 1, 3]))
        response = ours.is_allowed("orders", "alice")
        allowed, left = model.take(clock() / 1_000_000, cost)
        assert (response.allowed, response.headers["X-RateLimit-Remaining"]) == (allowed, str(left))


def test_spring_has_a_bucket_for_each_route_and_id() -> None:
    limiter = RequestRateLimiter(1, 1, clock=FakeClock(START_US))
    assert limiter.is_allowed("a", "b.c").allowed
    assert limiter.is_allowed("a.b", "c").allowed
    assert limiter.is_allowed("a", "b").allowed
    denied = limiter.is_allowed("a", "b")
    assert not denied.allowed
    assert denied.headers == {
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Requested-Tokens": "1",
        "X-RateLimit-Burst-Capacity": "1",
        "X-RateLimit-Replenish-Rate": "1",
    }
    limiter.close()


def test_spring_one_a_minute_is_sixty_tokens_a_request() -> None:
    clock = FakeClock(START_US)
    limiter = RequestRateLimiter(1, 60, 60, clock=clock)
    passed = []
    for _ in range(5):
        passed.append(limiter.is_allowed("orders", "alice").allowed)
        clock.advance(30)
    assert passed == [True, False, True, False, True]


def test_spring_refuses_what_could_never_pass() -> None:
    with pytest.raises(ConfigError, match="requested_tokens"):
        RequestRateLimiter(1, 5, 6)


class RedissonModel:
    """Permits by the millisecond at which they were taken; they come back one interval later."""

    def __init__(self, rate: int, interval_ms: int) -> None:
        self.rate, self.interval_ms = rate, interval_ms
        self.taken: list[tuple[int, int]] = []

    def take(self, now_ms: int, permits: int) -> bool:
        self.taken = [one for one in self.taken if one[0] > now_ms - self.interval_ms]
        if sum(count for _, count in self.taken) + permits > self.rate:
            return False
        self.taken.append((now_ms, permits))
        return True


@pytest.mark.parametrize("seed", range(20))
def test_redisson_and_ours_decide_alike(seed: int) -> None:
    chance = random.Random(seed)
    rate, interval = chance.randrange(1, 12), chance.randrange(1, 5)
    clock = FakeClock(START_US)
    model = RedissonModel(rate, interval * 1_000)
    ours = RRateLimiter("api", store=MemoryStore(), clock=clock)
    assert ours.try_set_rate(OVERALL, rate, interval)
    for _ in range(300):
        clock.advance(chance.choice([0, 0, 0.125, 0.25, 1, 1.5]))
        permits = chance.randrange(1, rate + 1)
        assert ours.try_acquire(permits) is model.take(clock() // 1_000, permits)


def test_redisson_sets_a_rate_once_or_anew() -> None:
    limiter = RRateLimiter("api", store=MemoryStore(), clock=FakeClock(START_US))
    with pytest.raises(ConfigError, match="try_set_rate"):
        limiter.try_acquire()
    assert limiter.try_set_rate(OVERALL, 2, 60)
    assert not limiter.try_set_rate(OVERALL, 9, 60)
    assert limiter.available_permits() == 2
    assert limiter.try_acquire(2)
    assert not limiter.try_acquire()
    limiter.set_rate(OVERALL, 3, 60)
    assert limiter.available_permits() == 1
    with pytest.raises(ConfigError, match="never"):
        limiter.try_acquire(4)
    limiter.delete()
    assert limiter.available_permits() == 3
    with pytest.raises(ConfigError, match="PER_CLIENT"):
        limiter.set_rate("PER_DAY", 3, 60)


def test_redisson_counts_overall_or_per_client() -> None:
    store, clock = MemoryStore(), FakeClock(START_US)
    one, other = (RRateLimiter("api", store=store, clock=clock) for _ in range(2))
    for limiter in (one, other):
        limiter.set_rate(OVERALL, 1, 60)
    assert one.try_acquire()
    assert not other.try_acquire()
    for limiter in (one, other):
        limiter.set_rate(PER_CLIENT, 1, 60)
    assert one.try_acquire()
    assert other.try_acquire()
    assert not one.try_acquire()


def test_redisson_waits() -> None:
    clock = FakeClock(START_US)
    limiter = RRateLimiter("api", store=MemoryStore(), clock=clock)
    limiter.set_rate(OVERALL, 1, 10)
    limiter.acquire()
    assert not limiter.try_acquire(1, timeout=9.9)
    limiter.acquire()
    assert clock() == START_US + 10_000_000


class SentinelModel:
    """When the last one was let pass, in milliseconds."""

    def __init__(self, count: int, most_ms: int) -> None:
        self.cost_ms, self.most_ms = 1_000 // count, most_ms
        self.passed_ms = -(10**12)

    def take(self, now_ms: int) -> int | None:
        """How long to wait; None: denied."""
        wait = max(0, self.passed_ms + self.cost_ms - now_ms)
        if wait > self.most_ms:
            return None
        self.passed_ms = now_ms + wait
        return wait


@pytest.mark.parametrize("seed", range(20))
def test_sentinels_pacing_and_ours_tell_the_same_waits(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice([1, 2, 4, 5, 10, 20, 50, 100])
    most_ms = chance.choice([0, 10, 500, 2_000])
    clock = FakeClock(START_US)
    model, ours = (
        SentinelModel(count, most_ms),
        rate_limiter_controller(count, most_ms, clock=clock),
    )
    for _ in range(300):
        clock.advance(chance.choice([0, 0, 0.005, 0.02, 0.1, 1]))
        decision = ours.take("orders")
        told = round(decision.delay * 1_000) if decision else None
        assert told == model.take(clock() // 1_000)


def test_sentinels_warm_up_is_a_pacer() -> None:
    theirs = warm_up_controller(2, 4, clock=FakeClock())
    ours = Pacer(2, warmup=4, clock=FakeClock())
    assert [theirs.acquire() for _ in range(9)] == [ours.acquire() for _ in range(9)]
