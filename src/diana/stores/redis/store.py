"""Counters in Redis or Valkey: `redis://host`, `redis+cluster://…` and so on. Two shells around `asking` that differ by an `await`.

Decisions never raise: without the server they are made here, and marked as degraded.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from asyncio import get_running_loop
from time import monotonic
from typing import Any, TypeVar

from diana.core.charge import Charges
from diana.core.contracts import AsyncTake, Clock, Take
from diana.core.decision import Decision
from diana.core.errors import ConfigError, shown
from diana.core.exchange import adrive, drive
from diana.core.meter import Meter
from diana.stores.redis.asking import Asking
from diana.stores.redis.background.keeper import Keeper
from diana.stores.redis.connection.client import ClientKeeper
from diana.stores.redis.counts import Counts
from diana.stores.redis.deny_cache import Denials
from diana.stores.redis.errands import EXPECTED, arun, run
from diana.stores.redis.fallback import Fallback
from diana.stores.redis.protocol.wire import Plans
from diana.stores.redis.questions import Steps
from diana.stores.redis.url import Address, address_from_url, namespace_from_spelling

BUDGET_US = 50_000
NAMESPACE = "diana"

T = TypeVar("T")


class RedisStore:
    shared = True
    settings = ("namespace", "budget_us", "nodes")

    def __init__(
        self,
        where: Address | Any,
        *,
        namespace: str | None = None,
        budget_us: int | None = None,
        nodes: int | None = None,
    ) -> None:
        said = where if isinstance(where, Address) else Address("client", ())
        _check(namespace, budget_us, nodes)
        self.namespace = namespace or said.namespace or NAMESPACE
        self.budget = (budget_us or said.budget_us or BUDGET_US) / 1_000_000
        """Seconds."""
        self._where = where
        self._counts = Counts()
        self._denials = Denials()
        self._fallback = Fallback(nodes or said.nodes or 1)
        self._plans = Plans(self._publish)
        self._start()
        self._keeper.ensure()
        self.asynchronous = AsyncSide(self)
        _stores.add(self)

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> RedisStore:
        return cls(address_from_url(url), **settings)

    @classmethod
    def from_client(cls, client: Any, **settings: Any) -> RedisStore:
        """On a client of redis-py or valkey-py that is yours to close; its time-outs are the only bound."""
        return cls(client, **settings)

    @staticmethod
    def check_url(url: str) -> None:
        address_from_url(url)

    def bind(self, meter: Meter, clock: Clock | None = None) -> Take:
        def take(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            return self.decide([(meter, key, cost)], clock and clock())[0]

        return take

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        asking, deadline = self.asking, monotonic() + self.budget
        short = asking.shortcut(charges, now)
        if short is None:
            return self._drive(asking.deciding(charges, now), deadline)
        server, keys, argv, _ = short
        reply = server.quickly(keys, argv, now, deadline)
        decisions = asking.concluded(reply, charges)
        if decisions is None:
            return self._drive(asking.concluding(short, reply, charges, now), deadline)
        return decisions

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self._drive(self.asking.peeking(charges, now))

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        self._drive(self.asking.refunding(charges, at, now))

    def refund_here(self, charges: Charges, at: int, now: int | None = None) -> None:
        """Of degraded decisions: the store knows nothing of them, unless they were settled since."""
        self._drive(self.asking.refunding(charges, at, now, here=True))

    def reset(self, meter: Meter, key: str) -> None:
        self._drive(self.asking.resetting(meter, key))

    def close(self) -> None:
        self._keeper.close()

    @property
    def lost(self) -> bool:
        """Whether some server of the store is out of reach now."""
        servers = self._keeper.topology.servers
        return not servers or any(server.down for server in servers)

    def counts(self) -> dict[str, int]:
        """How often what happened since it was opened."""
        return self._counts.shown()

    def _drive(self, steps: Steps[T], deadline: float | None = None) -> T:
        end = monotonic() + self.budget if deadline is None else deadline
        return drive(steps, lambda errands: run(errands, end))

    def _start(self) -> None:
        """In a forked child anew: the parent's threads and sockets are the parent's."""
        self._keeper: Keeper | ClientKeeper
        count, set_back = self._counts.add, self._denials.clear
        if isinstance(self._where, Address):
            self._keeper = Keeper(
                self._where, self._fallback, self.namespace, self.budget, count, set_back
            )
        else:
            self._keeper = ClientKeeper(self._where, self.budget, count, set_back)
        self.asking = Asking(self._keeper, self._plans, self._denials, self._fallback, count)
        self._finalizer = weakref.finalize(self, self._keeper.stop)

    def _publish(self, id: bytes, meter: Meter) -> None:
        self._keeper.make_known(f"{self.namespace}:limit:".encode() + id, meter)


class AsyncSide:
    """The same for coroutines."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def bind(self, meter: Meter, clock: Clock | None = None) -> AsyncTake:
        async def take(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            return (await self.decide([(meter, key, cost)], clock and clock()))[0]

        return take

    async def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        asking, deadline = self._store.asking, monotonic() + self._store.budget
        short = asking.shortcut(charges, now)
        if short is None:
            return await self._drive(asking.deciding(charges, now), deadline)
        server, keys, argv, _ = short
        reply: Any
        try:
            reply = await server.turn_of(get_running_loop()).decide(keys, argv, now)
        except EXPECTED as error:
            reply = error
        decisions = asking.concluded(reply, charges)
        if decisions is None:
            return await self._drive(asking.concluding(short, reply, charges, now), deadline)
        return decisions

    async def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return await self._drive(self._store.asking.peeking(charges, now))

    async def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        await self._drive(self._store.asking.refunding(charges, at, now))

    async def refund_here(self, charges: Charges, at: int, now: int | None = None) -> None:
        await self._drive(self._store.asking.refunding(charges, at, now, here=True))

    async def reset(self, meter: Meter, key: str) -> None:
        await self._drive(self._store.asking.resetting(meter, key))

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)

    async def _drive(self, steps: Steps[T], deadline: float | None = None) -> T:
        end = monotonic() + self._store.budget if deadline is None else deadline
        return await adrive(steps, lambda errands: arun(errands, end))


def _check(namespace: Any, budget_us: Any, nodes: Any) -> None:
    """What a URL or a file says was checked; this may come from code."""
    if namespace is not None:
        namespace_from_spelling(namespace)
    if budget_us is not None and (
        budget_us.__class__ is not int or not 1_000 <= budget_us <= 10_000_000
    ):
        raise ConfigError(
            f"budget_us is {shown(budget_us)}; write microseconds from 1000 to 10000000"
        )
    if nodes is not None and (nodes.__class__ is not int or nodes < 1):
        raise ConfigError(f"nodes is {shown(nodes)}; write a whole number from 1")


_stores: weakref.WeakSet[RedisStore] = weakref.WeakSet()


def _restart_all() -> None:
    for store in list(_stores):
        store._fallback.forget_debts()
        store._finalizer.detach()
        store._keeper.abandon()
        store._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_all)
