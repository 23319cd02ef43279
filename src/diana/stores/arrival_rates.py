"""How often each key is charged, here and in the fleet as far as heartbeats report it.

If a key is charged far too often, chance decides which of its requests still query the store (`drop: random`).

Counting every key of a crowd takes as much memory as the crowd has names. Misra and Gries: keep k counters; a key without a counter,
while all are taken, takes one off each of them. A key that is more than one in k of all arrivals always has a counter, and no count is
too high. So the memory is bounded, whatever keys clients invent.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from diana.core.duration import SECOND_US
from diana.core.limit import Limit
from diana.runtime.fork import fork_safe_lock

ASKED = 2
"""Times the limit: above that many arrivals chance decides, so that about so many still ask."""


class TopCounts:
    def __init__(self, size: int) -> None:
        self._size = size
        self.counts: dict[str, int] = {}

    def add(self, key: str) -> int:
        """One more arrival; gives how many there were at least."""
        counts = self.counts
        known = counts.get(key)
        if known is not None:
            counts[key] = known + 1
            return known + 1
        if len(counts) < self._size:
            counts[key] = 1
            return 1
        # Paid for by the arrivals that filled them: each takes part in as many of these rounds as it added.
        self.counts = {other: count - 1 for other, count in counts.items() if count > 1}
        return 0

    def top(self, most: int) -> list[tuple[str, int]]:
        return sorted(self.counts.items(), key=lambda one: -one[1])[:most]


def chance_to_ask(limit: Limit, per_second: float) -> float:
    """1.0 up to twice the limit; beyond, so that about twice the limit still asks."""
    enough = ASKED * limit.rpu * SECOND_US / limit.unit_us
    return 1.0 if per_second <= enough else enough / per_second


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
