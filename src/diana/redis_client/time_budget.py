"""How much longer a request may wait for the store.

Only waiting spends it. Time for which this process had no processor, or a thread did not have the interpreter, is not the server's fault:
a wait of 10 ms that took 80 counts as 10 ms of waiting; 70 were lost in this process. The monotonic clock around each wait measures that
on every system and in every sandbox, and includes what the kernel's own figures (run delay, pressure) leave out: a process that was
stopped, a thread that waited for the interpreter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

SLICES = 4
"""A wait is cut in so many, so that time lost in this process during one costs the budget no more than that one."""
LATE = 0.005
"""Seconds by which a wait may overrun before this process counts as held up."""

SHORTEST = 0.0005
"""Seconds of a wait; a socket's time-out of 0 would mean something else."""
UNNOTICED = 0.001
"""Seconds by which a wait may overrun on any machine; less is not counted as lost."""
MOST_WAITS = 10 * SLICES
"""For a thread that works for us: if this process is held up, so is that one."""


class Budget:
    __slots__ = ("_slice", "left", "lost")

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self._slice = seconds / SLICES
        self.lost = 0.0
        """Seconds by which waits took longer than they should have."""

    def slice(self) -> float:
        """How long to wait at a time."""
        left = self.left
        if left >= self._slice:
            return self._slice
        return left if left > SHORTEST else SHORTEST

    def spend(self, waited: float) -> None:
        late = waited - self._slice
        if late <= UNNOTICED:
            self.left -= waited
        else:
            self.left -= self._slice
            self.lost += late

    def is_half_spent(self) -> bool:
        return self.left < 2.5 * self._slice

    def is_spent(self) -> bool:
        return self.left <= 0

    def proves_silence(self) -> bool:
        """Whether this wait shows that the server has fallen silent, and not only that one reply was lost."""
        return False

    def wait(self, wake: threading.Lock, when_late: Callable[[], None]) -> bool:
        """Until another thread releases the lock; whether it did in time. `when_late` is called each time that it did not yet.

        What this thread has lost, the other may have lost, too, so that it has as much time again.
        """
        for _ in range(MOST_WAITS):
            began, seconds = monotonic(), self.slice()
            if wake.acquire(timeout=seconds):
                self.spend(monotonic() - began)
                return True
            self.spend(monotonic() - began)
            if self.is_spent():
                if not self.lost:
                    break
                self.left, self.lost = min(self.lost, SLICES * self._slice), 0.0
            when_late()
        return wake.acquire(blocking=False)
