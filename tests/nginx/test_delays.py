"""A leaky bucket in nginx: who has to wait does, without holding up others; who leaves gives the place back."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from tests.servers.limiting_nginx import LimitingNginx
from tests.servers.ports import HOST
from tests.servers.server import Server
from tests.servers.waiting import until

RULES = """
{store}
limits:
  - {{url: /brief, rules: [{{name: brief, unit: second, rpu: 20, algo: LB, burst: 10, scope: {scope}}}]}}
  - {{url: /long, rules: [{{name: long, unit: 50m, rpu: 50, algo: LB, burst: 3, scope: {scope}}}]}}
  - {{url: /free, rules: [{{name: free, unit: day, rpu: 100, scope: {scope}}}]}}
"""


@pytest.mark.parametrize("scope", ["local", "global"])
def test_releases_are_apart_and_others_are_not_held_up(redis7: Server, scope: str) -> None:
    redis7.ask("FLUSHALL")
    store = f"store: {redis7.url}\nstore_budget: 10s" if scope == "global" else ""
    with LimitingNginx(RULES.format(store=store, scope=scope)) as nginx:

        async def all_at_once() -> float:
            async with httpx.AsyncClient(timeout=60) as client:
                began = time.monotonic()
                replies = await asyncio.gather(
                    *[client.get(f"{nginx.url}/brief") for _ in range(8)]
                )
                assert {reply.status_code for reply in replies} == {200}
                return time.monotonic() - began

        # Eight of 20 a second: the last is released seven gaps of 50 ms after the first.
        assert asyncio.run(all_at_once()) >= 0.3


@pytest.mark.parametrize("scope", ["local", "global"])
def test_who_leaves_gives_the_place_back(redis7: Server, scope: str) -> None:
    redis7.ask("FLUSHALL")
    store = f"store: {redis7.url}\nstore_budget: 10s" if scope == "global" else ""
    with LimitingNginx(RULES.format(store=store, scope=scope)) as nginx:

        async def has_room() -> bool:
            """Who finds a place waits for it; who finds none is told so at once."""
            writer = await _opened(nginx, "/long")
            try:
                await asyncio.wait_for(writer.reader.read(1), 2)
            except TimeoutError:
                return True
            finally:
                writer.close()
            return False

        async def leave() -> None:
            """All of the queue is taken by clients who have a minute and more to wait."""
            assert (await _status(nginx, "/long")) == 200
            waiting = [await _opened(nginx, "/long") for _ in range(3)]
            # They are in, one after the other, as soon as one more is denied; what does not wait is not held up by them.
            while await has_room():
                # Who looked came before one of them, who was denied.
                waiting.append(await _opened(nginx, "/long"))
            assert (await _status(nginx, "/free")) == 200
            for writer in waiting:
                writer.close()
                await writer.wait_closed()

        asyncio.run(leave())
        until(lambda: asyncio.run(has_room()), "a place is free again")


class _Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer
        self.close = writer.close
        self.wait_closed = writer.wait_closed


async def _opened(nginx: LimitingNginx, path: str) -> _Client:
    reader, writer = await asyncio.open_connection(HOST, nginx.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await writer.drain()
    return _Client(reader, writer)


async def _status(nginx: LimitingNginx, path: str) -> int:
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.get(nginx.url + path)).status_code
