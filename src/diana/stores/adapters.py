"""Synchronous stores used from coroutines, charges of cancelled tasks, and renewal of a slot in any store.

If a task is cancelled while its charge is under way in a remote store, the charge stands, but a slot has to be released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from diana.core.charge import Charges, charged_at
from diana.core.contracts import AsyncStore, AsyncTake, Clock, Store
from diana.core.counter import CounterSpec
from diana.core.decision import Decision


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


T = TypeVar("T")

Abandoned = Callable[[list[Decision]], None]


async def decide_shielded(
    store: AsyncStore, charges: Charges, now: int | None, abandoned: Abandoned
) -> list[Decision]:
    """The decisions; if the task is cancelled meanwhile, `abandoned` gets them as soon as they are known.

    A store that can tell so by itself has a `decide_for(charges, now, abandoned)`: it costs no task of its own.
    """
    decide_for: Any = getattr(store, "decide_for", None)
    if decide_for is not None:
        found: list[Decision] = await decide_for(charges, now, abandoned)
        return found
    return await though_cancelled(store.decide(charges, now), abandoned)


async def though_cancelled(deciding: Awaitable[T], abandoned: Callable[[T], None]) -> T:
    decided = asyncio.ensure_future(deciding)
    try:
        return await asyncio.shield(decided)
    except asyncio.CancelledError:
        decided.add_done_callback(
            lambda done: None if done.cancelled() or done.exception() else abandoned(done.result())
        )
        raise


def renewed(
    store: Store, charge: tuple[CounterSpec, str, int], at: int, now: int | None = None
) -> int:
    """The place's moment from now on; 0 if it has run off, and all are taken.

    A store that cannot renew gives the place back and takes one: another may come in between, and then it is lost.
    """
    renew: Any = getattr(store, "renew", None)
    if renew is not None:
        moment: int = renew(charge, at, now)
        return moment
    store.refund([charge], at, now)
    (decision,) = store.decide([charge], now)
    return charged_at(charge[0], decision) if decision else 0
