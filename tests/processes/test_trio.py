"""trio has no asyncio loop: who uses the asynchronous twins there is told so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from diana import AsyncGuard, AsyncLimiter, DianaError, Request
from diana.sources.rules import rules_from_bytes
from tests.servers.server import Server

RULES = b"limits: [{url: /, rules: [{name: all, unit: day, rpu: 9, scope: global}]}]"


async def take(url: str) -> Any:
    limiter = AsyncLimiter("9/day", store=f"{url}?budget=5s", name="trio")
    return await limiter.take("k")


async def check(url: str) -> Any:
    return await AsyncGuard(rules_from_bytes(RULES, "rules"), f"{url}?budget=5s").check(Request())


async def wait(url: str) -> Any:
    return await AsyncLimiter("9/day").wait("k")


@pytest.mark.parametrize("call", [take, check, wait], ids=lambda call: call.__name__)
def test_under_trio_it_says_what_to_use_instead(
    call: Callable[[str], Awaitable[Any]], redis7: Server
) -> None:
    with pytest.raises(DianaError, match=r"trio .* none: use the synchronous .* in a thread"):
        trio.run(call, redis7.url)


def test_a_limiter_in_memory_needs_no_loop_to_take() -> None:
    limiter = AsyncLimiter("1/day")
    assert trio.run(limiter.take, "k")
    assert not trio.run(limiter.take, "k")
