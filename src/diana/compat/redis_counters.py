"""Limiters that people write by hand on Redis: `INCR` and `EXPIRE`, and a sorted set of moments."""

from __future__ import annotations

from diana.compat.limiters import AnyStore, limiter_on, whole
from diana.core.contracts import Clock


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
