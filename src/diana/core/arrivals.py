"""How often which keys are asked for, in bounded memory; and by what chance one still asks when it is far too often.

Counting every key of a crowd takes as much memory as the crowd has names. Misra and Gries: keep k counters; a key that has none while
all are taken takes one off each of them instead. A key that is more than one in k of all arrivals is always among those kept, and no
count is ever too high.
"""

from __future__ import annotations

from diana.core.duration import SECOND_US
from diana.core.limit import Limit

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
