"""Counters whose permits are leased, as a store: the side of a RedisStore that rules of scope leased count in."""

from __future__ import annotations

from os import getpid
from typing import TYPE_CHECKING

from diana.core.charge import Charges
from diana.core.contracts import AsyncTake, Clock, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.redis_client.time_budget import Budget

if TYPE_CHECKING:
    from diana.stores.redis.store import RedisStore


class LeasedStore:
    shared = True

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.namespace = store.namespace
        self.asynchronous = AsyncLeasedStore(store)

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        store = self._store

        def take(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            if clock is None:
                if store.pid != getpid():
                    store.leases()  # of this process
                decision = store.lease_table.take(meter, key, cost)
                if decision is not None:
                    return decision
            return self.decide([(meter, key, cost)], clock and clock())[0]

        return take

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        store = self._store
        if now is None and charges:
            if store.pid != getpid():
                store.leases()  # of this process
            decisions = store.lease_table.at_hand(charges)
            if decisions is not None:
                return decisions
        steps = store.lease_decider().decide(charges, now)
        return store.drive(steps, Budget(store.budget))

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self._store.drive(self._store.lease_decider().peek(charges, now))

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        self._store.drive(self._store.lease_decider().refund(charges, at, now))

    def refund_here(self, charges: Charges, at: int, now: int | None = None) -> None:
        self._store.drive(self._store.lease_decider().refund(charges, at, now, here=True))

    def reset(self, meter: CounterSpec, key: str) -> None:
        self._store.drive(self._store.lease_decider().reset(meter, key))

    def close(self) -> None:
        """It is a side of another store, which is closed as a whole."""


class AsyncLeasedStore:
    """The same for coroutines."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> AsyncTake:
        async def take(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            return (await self.decide([(meter, key, cost)], clock and clock()))[0]

        return take

    async def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        decider = self._store.lease_decider()
        if now is None and charges:
            decisions = decider.table.at_hand(charges)
            if decisions is not None:
                return decisions
        return await self._store.asynchronous.drive(
            decider.decide(charges, now), Budget(self._store.budget)
        )

    async def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return await self._store.asynchronous.drive(self._store.lease_decider().peek(charges, now))

    async def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        await self._store.asynchronous.drive(self._store.lease_decider().refund(charges, at, now))

    async def refund_here(self, charges: Charges, at: int, now: int | None = None) -> None:
        decider = self._store.lease_decider()
        await self._store.asynchronous.drive(decider.refund(charges, at, now, here=True))

    async def reset(self, meter: CounterSpec, key: str) -> None:
        await self._store.asynchronous.drive(self._store.lease_decider().reset(meter, key))

    async def close(self) -> None:
        """See LeasedStore."""
