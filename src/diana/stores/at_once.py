"""A store that never makes anybody wait, as coroutines see it."""

from __future__ import annotations

from diana.core.charge import Charges
from diana.core.contracts import AsyncTake, Clock, Store
from diana.core.decision import Decision
from diana.core.meter import CounterSpec


class AsyncAdapter:
    def __init__(self, store: Store) -> None:
        self._store = store

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> AsyncTake:
        take_at_once = self._store.bind(meter, clock)

        async def take(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            return take_at_once(key, cost)

        return take

    async def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self._store.decide(charges, now)

    async def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self._store.peek(charges, now)

    async def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        self._store.refund(charges, at, now)

    async def reset(self, meter: CounterSpec, key: str) -> None:
        self._store.reset(meter, key)

    async def close(self) -> None:
        self._store.close()
