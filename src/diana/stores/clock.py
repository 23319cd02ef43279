"""The wall clock, guarded against steps.

It is read once and then carried on by the monotonic clock, which the kernel slews but never steps: a `date -s`, a bad NTP answer or a
resumed snapshot moves no window and gives nobody a second burst.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns

EPOCH_OFFSET_US = time_ns() // 1_000 - monotonic_ns() // 1_000
"""Add it to the monotonic clock in whole microseconds."""


def wall_us() -> int:
    return monotonic_ns() // 1_000 + EPOCH_OFFSET_US
