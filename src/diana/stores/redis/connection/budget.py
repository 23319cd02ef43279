"""How much longer a request may wait for the store.

Only waiting spends it. Time for which this process had no processor, or a thread not the interpreter, is nobody's fault at the other end:
a wait of 10 ms that took 80 was 10 ms of waiting and 70 of being late ourselves.
"""

from __future__ import annotations

import threading
from time import monotonic

SLICES = 4
"""A wait is cut in so many, so that being late ourselves during one costs the budget no more than that one."""
LATE = 0.005
"""Seconds by which a wait may overrun before this process counts as held up."""

BUSY = 0.001
"""Seconds by which a wait overruns on a machine that has more to do than it can."""
MOST_WAITS = 100
"""A process that is held up again and again ends it, too."""


class Budget:
    __slots__ = ("_slice", "held_up", "left")

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self._slice = seconds / SLICES
        self.held_up = False
        """A wait took longer than it should have."""

    def slice(self) -> float:
        """How long to wait at a time; a socket's time-out of 0 would mean something else."""
        return max(0.0005, min(self.left, self._slice))

    def spend(self, waited: float) -> None:
        self.left -= min(waited, self._slice)
        if waited > self._slice + BUSY:
            self.held_up = True

    def wait(self, wake: threading.Lock) -> bool:
        """Until another thread releases the lock; whether it did in time."""
        for _ in range(MOST_WAITS):
            began, seconds = monotonic(), self.slice()
            if wake.acquire(timeout=seconds):
                self.spend(monotonic() - began)
                return True
            self.spend(seconds)
            if self.left <= 0 and monotonic() - began - seconds < LATE:
                break
        return wake.acquire(blocking=False)
