"""Pacing: so many per second, evenly, and gently after a pause.

A limiter says no; a pacer says when. It keeps one number, the moment from which the next permit is free. Who asks before waits until
then; what a caller takes is paid by the *next* one, so that a large request starts at once and its debt is worked off afterwards.

*Bursty*: time that nobody used is stored, up to `burst_seconds` of it, and spent without waiting.

*Warming up* turns that round. A backend that was idle is cold (empty caches, closed connections), so what was stored costs more, not
less: the more is stored, the longer the interval.

    interval
      cold ┤            ╱      spending from `full` down to `threshold` takes the area under the slope,
           │          ╱        which is `warmup`; from there to 0, half of it, at the ordinary interval
    stable ┤─────────╱
           └────────┬───┬─▶ stored
                threshold full
"""

from __future__ import annotations

from math import inf
from threading import Lock

from diana.core.contracts import Clock
from diana.core.errors import ConfigError, shown
from diana.slots.wait_queue import Timer, checked_seconds

SMALLEST = 1e-9
LARGEST = 10**12
SHORTEST_WAIT_US = 1.0
"""The clock shows nothing shorter: at 3 per second a permit is free at 333,333.3 µs, which it never reads."""


class Pacer:
    """`Pacer(5).acquire()` returns after at most a fifth of a second, and says how long it was."""

    def __init__(
        self,
        rate: float,
        *,
        burst_seconds: float = 1.0,
        warmup: float | None = None,
        cold_factor: float = 3.0,
        clock: Clock | None = None,
    ) -> None:
        self._timer = Timer(clock)
        self._began = self._timer.now()
        self._lock = Lock()
        self._warms_up = warmup is not None
        self._warmup_us = 0.0 if warmup is None else _warmup(warmup) * 1e6
        self._cold_factor = _positive("cold_factor", cold_factor)
        self._burst_us = _positive("burst_seconds", burst_seconds, smallest=0.0) * 1e6
        if self._cold_factor < 1:
            raise ConfigError(f"cold_factor is {cold_factor!r}; cold is slower, so write 1 or more")
        self._free_at = 0.0
        self._full = 0.0
        self._set_interval(_rate(rate))
        self._stored = self._full if self._warms_up and self._full < inf else 0.0

    @property
    def rate(self) -> float:
        """Permits per second; `inf` if nobody ever waits."""
        return self._rate

    def acquire(self, n: int = 1) -> float:
        """Wait for n permits; seconds waited."""
        seconds = self._reserve(n, inf)
        self._timer.sleep(seconds)
        return seconds

    def try_acquire(self, n: int = 1, timeout: float = 0) -> bool:
        """Wait for n permits if that takes no longer than the timeout; else do nothing."""
        seconds = self._reserve(n, checked_seconds(timeout))
        if seconds < 0:
            return False
        self._timer.sleep(seconds)
        return True

    async def aacquire(self, n: int = 1) -> float:
        """`acquire` for coroutines."""
        seconds = self._reserve(n, inf)
        await self._timer.asleep(seconds)
        return seconds

    async def try_aacquire(self, n: int = 1, timeout: float = 0) -> bool:
        """`try_acquire` for coroutines."""
        seconds = self._reserve(n, checked_seconds(timeout))
        if seconds < 0:
            return False
        await self._timer.asleep(seconds)
        return True

    def set_rate(self, rate: float) -> None:
        """From the next caller on; what is stored is kept in proportion. Who waits already keeps their moment."""
        with self._lock:
            self._store_idle_time()
            full = self._full
            self._set_interval(_rate(rate))
            if full == inf:
                self._stored = 0.0 if self._warms_up else self._full
            if self._full == inf:
                self._stored = 0.0
            elif 0.0 < full < inf:
                self._stored *= self._full / full

    def pause(self, seconds: float) -> None:
        """No permit for so long, and no burst afterwards: for an answer with `Retry-After`. Who waits already keeps their moment."""
        pause_us = _positive("pause", seconds, smallest=0.0) * 1e6
        with self._lock:
            now = self._store_idle_time()
            self._free_at = max(self._free_at, now + pause_us)
            if not self._warms_up:
                self._stored = 0.0

    def _set_interval(self, rate: float) -> None:
        self._rate = rate
        self._stable_us = 1e6 / rate
        self._threshold = self._slope = 0.0
        if rate == inf:
            self._full = self._refill_us = inf
        elif self._warms_up and not self._warmup_us:
            # Warm at once, and like all that warm up without a burst: nothing is stored.
            self._full, self._refill_us = 0.0, inf
        elif self._warms_up:
            cold_us = self._stable_us * self._cold_factor
            self._threshold = 0.5 * self._warmup_us / self._stable_us
            self._full = self._threshold + 2 * self._warmup_us / (self._stable_us + cold_us)
            self._slope = (cold_us - self._stable_us) / (self._full - self._threshold)
            self._refill_us = self._warmup_us / self._full
        else:
            self._full = self._burst_us / self._stable_us
            self._refill_us = self._stable_us

    def _reserve(self, n: int, timeout: float) -> float:
        """Seconds until the permits are free, or -1 if that is past the timeout."""
        if n.__class__ is not int or not 1 <= n <= LARGEST:
            raise ConfigError(f"{n!r} permits; write a whole number from 1 to 10**12")
        with self._lock:
            now = self._store_idle_time()
            wait_us = self._free_at - now
            if wait_us < SHORTEST_WAIT_US:
                wait_us = 0.0
            if wait_us > timeout * 1e6:
                return -1.0
            spent = min(float(n), self._stored)
            self._free_at += self._price_us(spent) + (n - spent) * self._stable_us
            self._stored -= spent
            return wait_us / 1e6

    def _store_idle_time(self) -> float:
        now = float(self._timer.now() - self._began)
        if now > self._free_at:
            idle = (now - self._free_at) / self._refill_us
            self._stored = min(self._full, self._stored + idle)
            self._free_at = now
        return now

    def _price_us(self, spent: float) -> float:
        """What it takes to spend so much of what is stored: nothing, or the area under the warm-up curve."""
        if not self._warms_up:
            return 0.0
        above = max(0.0, self._stored - self._threshold)
        sloped = min(above, spent)
        mean_us = self._stable_us + self._slope * (above - sloped / 2)
        return sloped * mean_us + (spent - sloped) * self._stable_us


def _rate(rate: float) -> float:
    return inf if rate == inf else _positive("rate", rate)


def _warmup(seconds: float) -> float:
    return (
        0.0 if seconds.__class__ in (int, float) and not seconds else _positive("warmup", seconds)
    )


def _positive(name: str, value: float, smallest: float = SMALLEST) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (smallest <= value <= LARGEST or value == smallest):
        words = f"above 0, at least {SMALLEST:g} and" if smallest else "from 0,"
        raise ConfigError(f"{name} is {shown(value)}; write a number {words} at most 10**12")
    return float(value)
