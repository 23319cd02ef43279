"""Counters in Redis or Valkey for coroutines: the same store, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from diana.core.charge import Charges
from diana.core.contracts import AsyncTake, Clock
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.drive import adrive
from diana.redis_client.time_budget import Budget
from diana.stores.adapters import though_cancelled
from diana.stores.redis.cluster_routing import JobSteps, WaitForServers
from diana.stores.redis.dispatch import Job, asend, running_loop
from diana.stores.redis.refunds import Charged

if TYPE_CHECKING:
    from diana.stores.redis.store import RedisStore

T = TypeVar("T")


class AsyncRedisStore:
    """`RedisStore` for coroutines."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> AsyncTake:
        async def take(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            return (await self.decide([(meter, key, cost)], clock and clock()))[0]

        return take

    async def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        decider, budget = self._store.decider(), Budget(self._store.budget)
        question = decider.prepare(charges, now)
        if question is None:
            return await self.drive(decider.decide(charges, now), budget)
        try:
            reply = await question.server.line_of(running_loop()).ask(question.ask, budget)
        except BaseException:
            decider.abandon(question)
            raise
        decisions = decider.conclude(question, reply, charges)
        if decisions is None:
            return await self.drive(decider.conclude_slowly(question, reply, charges, now), budget)
        return decisions

    async def decide_for(
        self, charges: Charges, now: int | None, abandoned: Callable[[list[Decision]], None]
    ) -> list[Decision]:
        """The same; should the task be cancelled meanwhile, `abandoned` gets what passed, as soon as it is known."""
        decider, budget = self._store.decider(), Budget(self._store.budget)
        question = decider.prepare(charges, now)
        if question is None:
            deciding = self.drive(decider.decide(charges, now), budget)
            return await though_cancelled(deciding, abandoned)
        answer = question.server.line_of(running_loop()).ask(question.ask, budget)
        try:
            reply = await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(
                lambda done: abandoned(
                    []
                    if done.cancelled()
                    else decider.conclude(question, done.result(), charges) or []
                )
            )
            raise
        decisions = decider.conclude(question, reply, charges)
        if decisions is None:
            deciding = self.drive(decider.conclude_slowly(question, reply, charges, now), budget)
            return await though_cancelled(deciding, abandoned)
        return decisions

    async def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return await self.drive(self._store.decider().peek(charges, now))

    async def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        await self.drive(self._store.decider().refund(charges, at, now))

    async def refund_here(self, charges: Charges, at: int, now: int | None = None) -> None:
        await self.drive(self._store.decider().refund(charges, at, now, here=True))

    async def release(
        self,
        places: Sequence[tuple[tuple[CounterSpec, str, int], int, bool]],
        now: int | None = None,
    ) -> list[Any]:
        return await self.drive(
            self._store.decider().release([Charged(*place) for place in places], now)
        )

    async def reset(self, meter: CounterSpec, key: str) -> None:
        await self.drive(self._store.decider().reset(meter, key))

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)

    async def drive(self, steps: JobSteps[T], budget: Budget | None = None) -> T:
        budget = Budget(self._store.budget) if budget is None else budget

        async def perform(step: Sequence[Job] | WaitForServers) -> list[Any]:
            if isinstance(step, WaitForServers):
                return await self._store.await_servers(budget)
            return await asend(step, budget)

        return await adrive(steps, perform)
