"""The client's side of one exchange: its body as it comes, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from diana.middleware.asgi import Receive

LOOK_AFTER = 0.05
"""Seconds until the gateway begins to watch whether the client leaves: most exchanges are over by then, and cost no task."""


class ClientLeft(Exception):
    """In the middle of its body; what it sent must not look complete to the upstream."""


class Upload:
    """The body of a request, piece by piece; nothing is kept."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = False
        self.left = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.left = True
                raise ClientLeft
            body: bytes = message.get("body", b"")
            if body:
                yield body
            if not message.get("more_body"):
                self.ended = True
                return


class Departure:
    """Cancels the task of an exchange when its client leaves.

    As long as a body comes, reading it tells; so it is looked at only what is received after its end.
    """

    def __init__(self, receive: Receive, upload: Upload | None) -> None:
        self._receive = receive
        self._upload = upload
        self._exchange: asyncio.Task[Any] | None = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._later = self._loop.call_later(LOOK_AFTER, self._look)
        self._watch: asyncio.Task[None] | None = None
        self.noticed = False

    def _look(self) -> None:
        if self._upload is None or self._upload.ended:
            self._watch = self._loop.create_task(self._until_it_leaves())
        else:
            self._later = self._loop.call_later(LOOK_AFTER, self._look)

    async def _until_it_leaves(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._exchange is not None:
            self.noticed = True
            self._exchange.cancel()

    def close(self) -> None:
        """The exchange is over; whoever leaves now leaves nothing behind."""
        self._later.cancel()
        if self._watch is not None:
            self._watch.cancel()
            self._exchange = None
