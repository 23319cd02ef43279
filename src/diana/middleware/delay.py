"""A request whose delay is being waited out: what it sends meanwhile is buffered for the app, and its client may leave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from diana.waiting import Timer

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

MOST_BUFFERED = 65_536
"""Bytes of a body that are buffered meanwhile; from a client that sends more, nothing is read until the delay is over."""
DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class DelayedRequest:
    """`receive` is the app's `receive`: first what was buffered, then what the server brings."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._buffer: deque[Message] = deque()
        self._bytes = 0
        # A pending receive is never cancelled: the server might already have taken the message out of its queue.
        self._next: asyncio.Future[Any] | None = None

    async def wait(self, seconds: float, timer: Timer) -> bool:
        """Wait out the delay; False if the client leaves meanwhile."""
        over: asyncio.Future[Any] = asyncio.ensure_future(timer.asleep(seconds))
        try:
            while not over.done():
                if self._bytes > MOST_BUFFERED:
                    await over
                    break
                self._next = self._next or asyncio.ensure_future(self._receive())
                await asyncio.wait({over, self._next}, return_when=asyncio.FIRST_COMPLETED)
                if self._next.done() and self._store(self._next):
                    return False
            over.result()
        except BaseException:
            self.close()
            raise
        finally:
            over.cancel()
        return True

    async def receive(self) -> Message:
        if self._buffer:
            return self._buffer.popleft()
        if self._next is not None:
            pending = self._next
            message: Message = await asyncio.shield(pending)
            if self._next is pending:
                self._next = None
            return message
        return await self._receive()

    def close(self) -> None:
        """The request is over; nothing more is received."""
        if self._next is not None:
            self._next.cancel()

    def _store(self, done: asyncio.Future[Any]) -> bool:
        """Whether it says that the client has left."""
        message: Message = done.result()
        self._next = None
        self._buffer.append(message)
        self._bytes += len(message.get("body") or b"")
        return message["type"] in DISCONNECTS
