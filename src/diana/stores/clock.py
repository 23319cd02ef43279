"""The wall clock, guarded against steps.

It is read once and then carried on by the monotonic clock, which the kernel slews but never steps: a `date -s`, a bad NTP answer or a
resumed snapshot moves no window and gives nobody a second burst.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns

from diana.core.contracts import Clock
from diana.core.errors import ConfigError

EPOCH_OFFSET_US = time_ns() // 1_000 - monotonic_ns() // 1_000
"""Add it to the monotonic clock in whole microseconds."""


def wall_us() -> int:
    return monotonic_ns() // 1_000 + EPOCH_OFFSET_US


def checked_clock(clock: Clock | None) -> Clock | None:
    if clock is not None and (not callable(clock) or clock().__class__ is not int):
        raise ConfigError(
            f"clock is {clock!r}; give a callable that returns whole microseconds (int)"
        )
    return clock
