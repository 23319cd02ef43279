"""A clock that stands still while this process does: for claims about how long something of ours takes.

A process that the machine stops for two seconds, or lets wait for a processor, has not worked for so long. Here such a pause counts as
`_LONGEST_GAP`, whatever it really lasted.
"""

from __future__ import annotations

import os
import time
from threading import Lock, Thread

_TICK = 0.005
_LONGEST_GAP = 0.05


class _Awake:
    def __init__(self) -> None:
        self._lock = Lock()
        self._real = time.monotonic()
        self._counted = 0.0
        Thread(target=self._tick, daemon=True, name="awake").start()

    def seconds(self) -> float:
        with self._lock:
            now = time.monotonic()
            self._counted += min(now - self._real, _LONGEST_GAP)
            self._real = now
            return self._counted

    def _tick(self) -> None:
        while True:
            time.sleep(_TICK)
            self.seconds()


_clocks: dict[int, _Awake] = {}
"""By process: a forked child's has a thread of its own."""


def awake_seconds() -> float:
    """Like `time.monotonic`, but for pauses of the whole process."""
    pid = os.getpid()
    if pid not in _clocks:
        _clocks.setdefault(pid, _Awake())
    return _clocks[pid].seconds()
