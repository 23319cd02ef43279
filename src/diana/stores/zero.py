"""What a limiter has in place of its store if one of its limits is 0: every charge is denied, and the store is not queried."""

from __future__ import annotations

from typing import Any

from diana.core.charge import Charges, checked_cost
from diana.core.contracts import AsyncStore, AsyncTake, Clock, Store, Take
from diana.core.counter import CounterSpec, countable
from diana.core.decision import Decision
from diana.core.errors import KeyTypeError
from diana.core.zero import REFUSED
from diana.runtime.clock import wall_us
from diana.stores import asynchronous


class ZeroStore:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.shared = store.shared
        self.asynchronous = AsyncZeroStore(self, asynchronous(store))

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        """The fast lane for one limit."""

        def take(key: str, cost: int = 1) -> Decision:
            """Denies the charge."""
            return self.decide([(meter, key, cost)], clock and clock())[0]

        return take

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        at = wall_us() if now is None else now
        return [_denial(meter, key, cost, at) for meter, key, cost in charges if meter.denies_all]

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self.decide(charges, now)

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        """Nothing was charged."""

    def reset(self, meter: CounterSpec, key: str) -> None:
        """Forget what was counted before the limit became 0."""
        self._store.reset(countable(meter), key)

    def close(self) -> None:
        self._store.close()


class AsyncZeroStore:
    """The same for coroutines."""

    def __init__(self, here: ZeroStore, store: AsyncStore) -> None:
        self._here = here
        self._store = store

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> AsyncTake:
        deny = self._here.bind(meter, clock)

        async def take(key: str, cost: int = 1) -> Decision:
            """Denies the charge."""
            return deny(key, cost)

        return take

    async def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self._here.decide(charges, now)

    async def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self._here.decide(charges, now)

    async def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        """Nothing was charged."""

    async def reset(self, meter: CounterSpec, key: str) -> None:
        await self._store.reset(countable(meter), key)

    async def close(self) -> None:
        await self._store.close()


def _denial(meter: CounterSpec, key: Any, cost: int, at: int) -> Decision:
    if not isinstance(key, str):
        raise KeyTypeError(key)
    return Decision(REFUSED, meter.params.limit, key, checked_cost(cost), at)
