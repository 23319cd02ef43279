"""A clock that moves only when it is told to; and `reset_counters`, so that one test does not meet the limits that another used up."""

from __future__ import annotations

from diana.stores.memory import MEMORY_STORES


class FakeClock:
    """`Limiter(..., clock=FakeClock())`: whoever waits on it moves it, so a test never sleeps."""

    def __init__(self, now_us: int = 0) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)

    def set(self, now_us: int) -> None:
        self.now_us = now_us

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def asleep(self, seconds: float) -> None:
        import asyncio

        self.advance(seconds)
        await asyncio.sleep(0)


def reset_counters() -> None:
    """Forget all that limiters, guards, middleware and routes of this process have counted in memory. What is in Redis stays."""
    for store in list(MEMORY_STORES):
        store.clear()
