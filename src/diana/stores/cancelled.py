"""What is asked of a store elsewhere while the task that asks is cancelled: the charge stands, but a place has to be given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from diana.core.charge import Charges
from diana.core.contracts import AsyncStore
from diana.core.decision import Decision

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
