"""Redisson: `RRateLimiter`, so many permits in any interval. A sliding log.

There the numbers stand in Redis, and whoever sets them first wins; here they stand in code or in a rules file, where they can be read,
reviewed and changed. So `try_set_rate` asks this object only.
"""

from __future__ import annotations

from secrets import token_hex

from diana.compat.cached_limiters import AnyStore, limiter_on, whole
from diana.core.contracts import Clock
from diana.core.errors import ConfigError
from diana.limiter import Limiter

OVERALL = "OVERALL"
"""All clients together."""
PER_CLIENT = "PER_CLIENT"
"""Each object of this kind for itself."""


class RRateLimiter:
    """`RRateLimiter("api", store="redis://…")`, then `try_set_rate(OVERALL, 100, 60)` and `try_acquire()`."""

    def __init__(
        self, name: str, *, store: AnyStore = "memory://", clock: Clock | None = None
    ) -> None:
        self._name = name
        self._store = store
        self._clock = clock
        self._limiter: Limiter | None = None
        self._rate = 0
        self._client = token_hex(8)
        self._key = ""

    def try_set_rate(self, mode: str, rate: int, interval: int) -> bool:
        """So many permits per so many seconds, unless that was set before; whether it was set now."""
        if self._limiter is not None:
            return False
        self.set_rate(mode, rate, interval)
        return True

    def set_rate(self, mode: str, rate: int, interval: int) -> None:
        """The same, whatever was set before. What was acquired within the same interval still counts."""
        if mode not in (OVERALL, PER_CLIENT):
            raise ConfigError(f"the mode is {mode!r}; write OVERALL or PER_CLIENT")
        spelling = f"{whole('rate', rate)} per {whole('interval', interval)}s"
        self._limiter = limiter_on(self._store, self._name, spelling, "SL", clock=self._clock)
        self._rate = rate
        self._key = "overall" if mode == OVERALL else f"client {self._client}"

    def try_acquire(self, permits: int = 1, timeout: float | None = None) -> bool:
        """At once, or within so many seconds."""
        limiter = self._ready(permits)
        if timeout is None:
            return bool(limiter.take(self._key, permits))
        return bool(limiter.wait(self._key, permits, timeout))

    def acquire(self, permits: int = 1) -> None:
        """However long it takes."""
        self._ready(permits).wait(self._key, permits)

    def available_permits(self) -> int:
        return self._ready(1).take(self._key, 0).remaining

    def delete(self) -> None:
        """Forget what was acquired."""
        self._ready(1).reset(self._key)

    def _ready(self, permits: int) -> Limiter:
        if self._limiter is None:
            raise ConfigError(
                "this limiter has no rate yet; call try_set_rate(OVERALL, rate, interval) first"
            )
        if whole("permits", permits) > self._rate:
            raise ConfigError(f"{permits} permits can never pass: the rate is {self._rate}")
        return self._limiter
