"""The Redis and Lua bucket with `init`, `acquire` and `delete`, as many companies have written it for themselves."""

from __future__ import annotations

from diana.compat.limiters import AnyStore, limiter_on, spelling_from_rate, whole
from diana.core.contracts import Clock
from diana.limiter import Limiter

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
