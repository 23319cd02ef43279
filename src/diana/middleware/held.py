"""A request that is held until its turn comes: what it sends meanwhile is kept for the app, and it may leave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from diana.waiting import Timer

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

MOST_KEPT = 65_536
"""Bytes of a body that are kept for a held request; who sends more is no longer listened to until its turn comes."""
LEFT = ("http.disconnect", "websocket.disconnect")


class Held:
    """`receive` is the app's `receive`: first what was kept, then what the server brings."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: deque[Message] = deque()
        self._bytes = 0
        # What is being waited for is never given up: a server might already have taken the message out of its queue.
        self._next: asyncio.Future[Any] | None = None

    async def stays(self, seconds: float, timer: Timer) -> bool:
        """Hold it; False if the client leaves meanwhile."""
        turn: asyncio.Future[Any] = asyncio.ensure_future(timer.asleep(seconds))
        try:
            while not turn.done():
                if self._bytes > MOST_KEPT:
                    await turn
                    break
                self._next = self._next or asyncio.ensure_future(self._receive())
                await asyncio.wait({turn, self._next}, return_when=asyncio.FIRST_COMPLETED)
                if self._next.done() and self._keep(self._next):
                    return False
            turn.result()
        except BaseException:
            self.close()
            raise
        finally:
            turn.cancel()
        return True

    async def receive(self) -> Message:
        if self._kept:
            return self._kept.popleft()
        if self._next is not None:
            pending = self._next
            message: Message = await asyncio.shield(pending)
            if self._next is pending:
                self._next = None
            return message
        return await self._receive()

    def close(self) -> None:
        """The request is over; nobody waits for more."""
        if self._next is not None:
            self._next.cancel()

    def _keep(self, done: asyncio.Future[Any]) -> bool:
        """Whether it says that the client has left."""
        message: Message = done.result()
        self._next = None
        self._kept.append(message)
        self._bytes += len(message.get("body") or b"")
        return message["type"] in LEFT
