"""How much longer a request may wait for the store.

Only waiting spends it. Time for which this process had no processor, or a thread not the interpreter, is not the server's fault:
a wait of 10 ms that took 80 was 10 ms of waiting and 70 of being late ourselves.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import monotonic

SLICES = 4
"""A wait is cut in so many, so that being late ourselves during one costs the budget no more than that one."""
LATE = 0.005
"""Seconds by which a wait may overrun before this process counts as held up."""

SHORTEST = 0.0005
"""Seconds of a wait; a socket's time-out of 0 would mean something else."""
BUSY = 0.001
"""Seconds by which a wait overruns on a machine that has more to do than it can."""
EXTENSION = 0.25
"""Seconds at most by which a budget is extended on such a machine."""
MOST_WAITS = 10 * SLICES
"""For a thread that works for us: if this process is held up, so is that one."""


def machine_is_busy() -> bool:
    """More is to be done than there are processors for, as far as the system tells."""
    try:
        with open("/proc/loadavg", encoding="ascii") as said:
            running, _, _ = said.read().split()[3].partition("/")
        return int(running) > (os.cpu_count() or 1)
    except (OSError, ValueError, IndexError):
        return False


class Budget:
    __slots__ = ("_slice", "held_up", "is_extended", "left")

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self._slice = seconds / SLICES
        self.held_up = False
        """A wait took longer than it should have."""
        self.is_extended = False

    def slice(self) -> float:
        """How long to wait at a time."""
        left = self.left
        if left >= self._slice:
            return self._slice
        return left if left > SHORTEST else SHORTEST

    def spend(self, waited: float) -> None:
        if waited <= self._slice:
            self.left -= waited
            return
        self.left -= self._slice
        if waited > self._slice + BUSY:
            self.held_up = True

    def is_half_spent(self) -> bool:
        return self.left <= 2 * self._slice

    def is_spent(self) -> bool:
        """Where more is to be done than there are processors for, it is given once more: the server may be held up as we are."""
        if self.left > 0:
            return False
        if self.is_extended or not machine_is_busy():
            return True
        self.is_extended = self.held_up = True
        self.left = min(EXTENSION, SLICES * self._slice)
        return False

    def wait(self, wake: threading.Lock, when_late: Callable[[], None]) -> bool:
        """Until another thread releases the lock; whether it did in time. `when_late` is called each time that it did not yet."""
        for _ in range(MOST_WAITS):
            began, seconds = monotonic(), self.slice()
            if wake.acquire(timeout=seconds):
                self.spend(monotonic() - began)
                return True
            self.spend(monotonic() - began)
            if self.is_spent() and not self.held_up:
                break
            when_late()
        return wake.acquire(blocking=False)
