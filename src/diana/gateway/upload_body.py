"""The client's side of one exchange: its body as it comes, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from diana.gateway.client_limits import DEFAULT, ClientLimits
from diana.gateway.error_response import ErrorResponse, problem
from diana.web.asgi_types import Message, Receive

LOOK_AFTER = 0.05
"""Seconds until the gateway begins to watch whether the client leaves: most exchanges are over by then, and cost no task."""
TOO_LATE = problem(408, "The rest of the body did not come in time.", (b"connection", b"close"))
OTHER_LENGTH = problem(400, "The body is not as long as was said.", (b"connection", b"close"))


class Incomplete(Exception):
    """The client left in the middle of its body, or sent another; it must not look complete to the upstream."""


class Upload:
    """The body of a request, piece by piece; nothing is kept."""

    def __init__(self, receive: Receive, length: int, bounds: ClientLimits = DEFAULT) -> None:
        self._receive = receive
        self._bounds = bounds
        self._patience = bounds.body_seconds
        """Seconds that the client may still be waited for; each byte of it buys some back."""
        self._missing = length
        """Bytes, or -1 if nobody knows."""
        self._first: Message | None = None
        self.ended = False
        self.left = False
        self.refusal: ErrorResponse | None = None

    async def length(self) -> int:
        """Of a body that no head announced: 0 if there is none, -1 if it does not end with its first piece."""
        self._first = await self._next()
        if self._first.get("more_body"):
            return -1
        self._missing = len(self._first.get("body", b""))
        return self._missing

    async def __aiter__(self) -> AsyncIterator[bytes]:
        known = self._missing >= 0
        while True:
            message = await self._next()
            body: bytes = message.get("body", b"")
            if known:
                self._missing -= len(body)
                if self._missing < 0:
                    self._refuse(OTHER_LENGTH)
            if body:
                yield body
            if not message.get("more_body"):
                if known and self._missing:
                    # The upstream would take the next request on this connection for the rest.
                    self._refuse(OTHER_LENGTH)
                self.ended = True
                return

    async def _next(self) -> Message:
        if self._first is not None:
            message, self._first = self._first, None
            return message
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._patience):
                message = await self._receive()
        except TimeoutError:
            self._refuse(TOO_LATE)
        earned = len(message.get("body", b"")) / self._bounds.body_rate
        left = self._patience - (loop.time() - began) + earned
        self._patience = min(self._bounds.body_seconds, left)
        if message["type"] == "http.disconnect":
            self.left = True
            raise Incomplete
        return message

    def _refuse(self, refusal: ErrorResponse) -> NoReturn:
        self.refusal = refusal
        raise Incomplete


class DisconnectWatch:
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
