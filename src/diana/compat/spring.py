"""Spring Cloud Gateway: `RequestRateLimiter` with replenishRate, burstCapacity and requestedTokens. A token bucket."""

from __future__ import annotations

from typing import NamedTuple

from diana.compat.cached_limiters import AnyStore, whole
from diana.core.contracts import Clock
from diana.core.errors import ConfigError
from diana.limiter import Limiter


class Response(NamedTuple):
    """Whether the request may pass, and the headers that Spring's filter sends along."""

    allowed: bool
    headers: dict[str, str]


class RequestRateLimiter:
    """`RequestRateLimiter(10, 20).is_allowed("orders", "alice").allowed`."""

    def __init__(
        self,
        replenish_rate: int,
        burst_capacity: int = 1,
        requested_tokens: int = 1,
        *,
        store: AnyStore = "memory://",
        name: str = "request_rate_limiter",
        clock: Clock | None = None,
    ) -> None:
        self._rate = whole("replenish_rate", replenish_rate)
        self._burst = whole("burst_capacity", burst_capacity)
        self._cost = whole("requested_tokens", requested_tokens)
        if self._cost > self._burst:
            raise ConfigError(
                f"requested_tokens is {requested_tokens}, burst_capacity {burst_capacity}: no request could ever pass; write more capacity"
            )
        self._limiter = Limiter(
            f"{replenish_rate}/second", burst=self._burst, store=store, name=name, clock=clock
        )

    def is_allowed(self, route_id: str, id: str) -> Response:
        """One bucket for each route and id, as in Spring."""
        decision = self._limiter.take(f"{len(route_id)}:{route_id}.{id}", self._cost)
        headers = {
            "X-RateLimit-Remaining": str(decision.remaining),
            "X-RateLimit-Requested-Tokens": str(self._cost),
            "X-RateLimit-Burst-Capacity": str(self._burst),
            "X-RateLimit-Replenish-Rate": str(self._rate),
        }
        return Response(decision.allowed, headers)

    def close(self) -> None:
        """Close the store, if it was given as a URL."""
        self._limiter.close()
