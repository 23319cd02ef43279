"""The wall clock, guarded against steps.

It is read once and then carried on by the monotonic clock, which the kernel slews but never steps: a `date -s`, a bad NTP answer or a
resumed snapshot moves no window and gives nobody a second burst.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, time_ns

from diana.core.contracts import Clock
from diana.core.errors import ConfigError

READINGS = 5


def epoch_offset_us(
    wall_ns: Callable[[], int] = time_ns, steady_ns: Callable[[], int] = monotonic_ns
) -> int:
    """From the monotonic clock to the wall clock; by the quickest of several readings, as the process may stand still in one."""
    quickest, offset = None, 0
    for _ in range(READINGS):
        before, wall, after = steady_ns(), wall_ns(), steady_ns()
        if quickest is None or after - before < quickest:
            quickest, offset = after - before, wall // 1_000 - (before + after) // 2_000
    return offset


EPOCH_OFFSET_US = epoch_offset_us()
"""Add it to the monotonic clock in whole microseconds."""


def wall_us() -> int:
    return monotonic_ns() // 1_000 + EPOCH_OFFSET_US


def checked_clock(clock: Clock | None) -> Clock | None:
    if clock is not None and (not callable(clock) or clock().__class__ is not int):
        raise ConfigError(
            f"clock is {clock!r}; give a callable that returns whole microseconds (int)"
        )
    return clock
