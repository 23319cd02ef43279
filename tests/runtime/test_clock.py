"""The wall clock of a process, and of a zone: how far it is from the monotonic one."""

from __future__ import annotations

import pytest

from diana.runtime.clock import READINGS, epoch_offset_us
from diana.testing import FakeClock

AHEAD_US = 1_800_000_000_000_000


@pytest.mark.parametrize("stands_still_in", range(3 * READINGS))
def test_a_process_that_stands_still_while_the_clocks_are_read_has_the_right_time(
    stands_still_in: int,
) -> None:
    clock, reads = FakeClock(), iter(range(1_000))

    def steady_ns() -> int:
        clock.advance(2.0 if next(reads) == stands_still_in else 0.000_001)
        return clock() * 1_000

    def wall_ns() -> int:
        return steady_ns() + AHEAD_US * 1_000

    assert abs(epoch_offset_us(wall_ns, steady_ns) - AHEAD_US) <= 1
