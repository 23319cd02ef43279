"""trio has no asyncio loop: who uses the asynchronous twins there is told so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest
import trio

from diana import AsyncGuard, AsyncLimiter, DianaError, Request
from diana.core.contracts import Store
from diana.rules.loading import rules_from_bytes
from diana.stores import open_store
from tests.servers.server import Server

RULES = b"limits: [{url: /, rules: [{name: all, unit: day, rpu: 9, scope: global}]}]"


async def take(store: Store) -> Any:
    return await AsyncLimiter("9/day", store=store, name="trio").take("k")


async def check(store: Store) -> Any:
    return await AsyncGuard(rules_from_bytes(RULES, "rules"), store).check(Request())


async def wait(_: Store) -> Any:
    return await AsyncLimiter("9/day").wait("k")


@pytest.mark.parametrize("call", [take, check, wait], ids=lambda call: call.__name__)
def test_under_trio_it_says_what_to_use_instead(
    call: Callable[[Store], Awaitable[Any]], redis7: Server
) -> None:
    # Opened here, where it can be closed: it would miss its server, and say so, while other tests run.
    with (
        closing(open_store(f"{redis7.url}?budget=5s")) as store,
        pytest.raises(DianaError, match=r"trio .* none: use the synchronous .* in a thread"),
    ):
        trio.run(call, store)


def test_a_limiter_in_memory_needs_no_loop_to_take() -> None:
    limiter = AsyncLimiter("1/day")
    assert trio.run(limiter.take, "k")
    assert not trio.run(limiter.take, "k")
