"""redis-cell: `CL.THROTTLE key max_burst count period [quantity]`, without a module in the server.

    throttle(store, "user123", 15, 30, 60)
                     ▲         ▲   ▲   └ seconds
                     key       │   └ so many per period
                               └ so many more at once, beside the first

The reply is the module's: 1 if it was limited, how many at most (`max_burst` + 1), how many are left, in how many seconds to come back (-1
if it passed, or never can), and after how many it is as if nobody had asked.
"""

from __future__ import annotations

from diana.compat.cached_limiters import AnyStore, async_limiter_on, limiter_on, whole
from diana.core.contracts import Clock
from diana.core.decision import Decision

NAME = "throttle"


def throttle(
    store: AnyStore,
    key: str,
    max_burst: int,
    count: int,
    period: int,
    quantity: int = 1,
    *,
    clock: Clock | None = None,
) -> list[int]:
    """`[limited, limit, remaining, retry_after, reset_after]`, all whole numbers; a quantity of 0 looks only."""
    spelling, burst = _numbers(max_burst, count, period)
    limiter = limiter_on(store, NAME, spelling, clock=clock, burst=burst)
    return reply(limiter.take(key, whole("quantity", quantity, 0)))


async def athrottle(
    store: AnyStore,
    key: str,
    max_burst: int,
    count: int,
    period: int,
    quantity: int = 1,
    *,
    clock: Clock | None = None,
) -> list[int]:
    """`throttle` for coroutines."""
    spelling, burst = _numbers(max_burst, count, period)
    limiter = async_limiter_on(store, NAME, spelling, clock=clock, burst=burst)
    return reply(await limiter.take(key, whole("quantity", quantity, 0)))


def reply(decision: Decision) -> list[int]:
    """Seconds are rounded up: who comes back then is let pass."""
    allowed, remaining, retry_after_us, reset_after_us, _ = decision.outcome
    never_again = allowed or retry_after_us < 0
    retry_after = -1 if never_again else -(-retry_after_us // 1_000_000)
    return [
        0 if allowed else 1,
        decision.limit,
        remaining,
        retry_after,
        -(-reset_after_us // 1_000_000),
    ]


def _numbers(max_burst: int, count: int, period: int) -> tuple[str, int]:
    spelling = f"{whole('count', count)} per {whole('period', period)}s"
    return spelling, whole("max_burst", max_burst, 0) + 1
