"""`drop: random`: when far more ask than can pass, chance decides who asks, before anything else does.

Of a hot product fifty times the limit may be asked for. Who is nearest to the servers asks first in every second, and wins; all others
cost a trip to be told no, or are told no from memory. With chance first, about twice the limit still asks, wherever it is, and each
request is worth the same.
"""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom

from diana.core.counter import CounterSpec
from diana.core.duration import SECOND_US
from diana.stores.arrival_rates import Arrivals, chance_to_ask

RETRY_US = SECOND_US
"""What a request that was dropped is told: by then more is known of how many there are."""
DROPPED = (False, 0, RETRY_US, RETRY_US, 0)


class RandomEarlyDrop:
    def __init__(self, arrivals: Arrivals, chance: Callable[[], float] | None = None) -> None:
        """`chance` gives a number from 0 to below 1."""
        self._arrivals = arrivals
        # Not the application's: it may have seeded that one.
        self.chance = SystemRandom().random if chance is None else chance

    def drops(self, meter: CounterSpec, key: str) -> bool:
        """One more arrival; whether it is not to ask."""
        per_second = self._arrivals.add(f"{meter.id}|{key}")
        asks = chance_to_ask(meter.limit, per_second)
        if asks >= 1.0 or self.chance() < asks:
            return False
        self._arrivals.dropped += 1
        return True
