"""Limiters as people write them by hand.

A funnel with a capacity and a leak rate; a bucket in a Lua script with `init`, `acquire` and `delete`; and counters on Redis, by `INCR`
and `EXPIRE` or as a sorted set.
"""

from __future__ import annotations

from diana.compat.cached_limiters import AnyStore, limiter_on, spelling_from_rate, whole
from diana.core.contracts import Clock
from diana.limiter import Limiter


class Funnel:
    """`Funnel(15, 0.5).watering()`: fifteen drops at once, then one every two seconds."""

    def __init__(
        self,
        capacity: int,
        leak_rate: float,
        *,
        key: str = "funnel",
        store: AnyStore = "memory://",
        name: str = "funnel",
        clock: Clock | None = None,
    ) -> None:
        self._limiter = Limiter(
            spelling_from_rate("leak_rate", leak_rate),
            burst=whole("capacity", capacity),
            store=store,
            name=name,
            clock=clock,
        )
        self._key = key

    def watering(self, quota: int = 1) -> bool:
        """Pour in so much, if there is room for all of it."""
        return bool(self._limiter.take(self._key, whole("quota", quota)))

    @property
    def left_quota(self) -> int:
        """The space that is left now, in whole drops."""
        return self._limiter.take(self._key, 0).remaining


PASSED, DENIED, NO_BUCKET = 1, -1, 0


class LuaBucket:
    """Buckets by key, each with numbers of its own: `init(key, max_permits, rate)`, then `acquire(key)`."""

    def __init__(
        self,
        store: AnyStore = "memory://",
        *,
        name: str = "lua_bucket",
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._limiters: dict[str, Limiter] = {}

    def init(self, key: str, max_permits: int, rate: float) -> int:
        """The bucket's size and how many permits a second flow back; again, to change them. What was acquired still counts."""
        self._limiters[key] = limiter_on(
            self._store,
            self._name,
            spelling_from_rate("rate", rate),
            clock=self._clock,
            burst=whole("max_permits", max_permits),
        )
        return PASSED

    def acquire(self, key: str, permits: int = 1) -> int:
        """1: passed. -1: denied. 0: there is no such bucket, so nothing is limited."""
        limiter = self._limiters.get(key)
        if limiter is None:
            return NO_BUCKET
        return PASSED if limiter.take(key, whole("permits", permits)) else DENIED

    def delete(self, key: str) -> int:
        """Forget the bucket and what was acquired. 0: there was none."""
        limiter = self._limiters.pop(key, None)
        if limiter is None:
            return NO_BUCKET
        limiter.reset(key)
        return PASSED


def is_below(
    store: AnyStore, address: str, times: int, seconds: int, *, clock: Clock | None = None
) -> bool:
    """So many times in so many seconds, by address: what `INCR` and `EXPIRE` count. A window that starts with the first request."""
    spelling = f"{whole('times', times)} per {whole('seconds', seconds)}s"
    limiter = limiter_on(store, "is_below", spelling, "W", clock=clock, align="first")
    return bool(limiter.take(address))


def is_action_allowed(
    store: AnyStore, user: str, action: str, period: int, most: int, *, clock: Clock | None = None
) -> bool:
    """At most so often in any period, by user and action: what a sorted set of moments counts. A sliding log."""
    spelling = f"{whole('most', most)} per {whole('period', period)}s"
    limiter = limiter_on(store, "is_action_allowed", spelling, "SL", clock=clock)
    return bool(limiter.take(f"{len(user)}:{user}:{action}"))
