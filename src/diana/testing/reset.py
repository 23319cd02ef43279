"""Empty counters, so that one test does not meet the limits that another used up."""

from __future__ import annotations

from diana.stores.memory import MEMORY_STORES


def reset_counters() -> None:
    """Forget all that limiters, guards, middleware and routes of this process have counted in memory. What is in Redis stays."""
    for store in list(MEMORY_STORES):
        store.clear()
