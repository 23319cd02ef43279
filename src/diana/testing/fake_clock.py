"""A clock that only moves when told to."""

from __future__ import annotations


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
