"""How often keys are asked for here, and in the fleet as far as heartbeats tell. Bounded, whatever clients invent."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from diana.core.arrivals import TopCounts
from diana.stores.lock import fork_safe_lock

WATCHED = 512
"""Keys that are counted at a time."""
REPORTED = 100
"""Of these, how many are told of."""
KNOWN_SECONDS = 3.0
"""For how long a sum holds without another."""


class Arrivals:
    """What this node sees and what it knows of the others. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = fork_safe_lock()
        self._counts = TopCounts(WATCHED)
        self._began = clock()
        self._fleet: dict[str, float] = {}
        self._heard = float("-inf")
        self.dropped = 0
        """Requests that chance has denied."""

    def __bool__(self) -> bool:
        return bool(self._counts.counts)

    def add(self, key: str) -> float:
        """One more; gives how many there are per second, in the fleet as far as it is known, at least here."""
        with self._lock:
            now = self._clock()
            here = self._counts.add(key) / max(1.0, now - self._began)
            if now - self._began > KNOWN_SECONDS:
                # Nobody collects them: there is no heartbeat, or it stands still.
                self._rotate(now)
            fleet = self._fleet.get(key, 0.0) if now - self._heard <= KNOWN_SECONDS else 0.0
            return max(fleet, here)

    def report(self) -> dict[str, int]:
        """How many per second of each of the most frequent, since it was last asked for."""
        with self._lock:
            now = self._clock()
            passed = max(0.001, now - self._began)
            said = {key: round(count / passed) for key, count in self._counts.top(REPORTED)}
            self._rotate(now)
            return {key: rate for key, rate in said.items() if rate > 0}

    def hear(self, sums: dict[str, float]) -> None:
        with self._lock:
            self._fleet, self._heard = sums, self._clock()

    def _rotate(self, now: float) -> None:
        passed = max(1.0, now - self._began)
        here = {key: count / passed for key, count in self._counts.top(REPORTED)}
        if now - self._heard > KNOWN_SECONDS:
            self._fleet, self._heard = here, now
        self._counts, self._began = TopCounts(WATCHED), now
