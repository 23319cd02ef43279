"""Sentinel: pacing (`RateLimiterController`) is a leaky bucket, warming up (`WarmUpController`) a pacer."""

from __future__ import annotations

from diana.compat.cached_limiters import AnyStore, whole
from diana.core.contracts import Clock
from diana.limiter import Limiter
from diana.pacer import Pacer


def rate_limiter_controller(
    count: int,
    max_queueing_time_ms: int = 500,
    *,
    store: AnyStore = "memory://",
    name: str | None = None,
    clock: Clock | None = None,
) -> Limiter:
    """So many a second, evenly; who would wait longer than that is denied. `hold` and `sleep_delay` do the waiting."""
    options: dict[str, str | int] = {"max_wait": f"{max_queueing_time_ms}ms"}
    if not whole("max_queueing_time_ms", max_queueing_time_ms, 0):
        options = {"burst": 0}
    return Limiter(
        f"{whole('count', count)}/second",
        algo="LB",
        store=store,
        name=name,
        clock=clock,
        **options,  # type: ignore[arg-type]
    )


def warm_up_controller(
    count: float,
    warm_up_period_sec: float = 10,
    cold_factor: float = 3,
    *,
    clock: Clock | None = None,
) -> Pacer:
    """From a third of the rate to all of it within the warm-up period."""
    return Pacer(count, warmup=warm_up_period_sec, cold_factor=cold_factor, clock=clock)
