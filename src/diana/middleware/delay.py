"""A request whose delay is being waited out: what it sends meanwhile is buffered for the app, and its client may leave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

from diana.core.verdict import Verdict
from diana.waiting import Timer

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

MOST_BUFFERED = 65_536
"""Bytes of a body that are buffered meanwhile; from a client that sends more, nothing is read until the delay is over."""
MOST_BUFFERED_IN_ALL = 8 * 1_048_576
"""Of all requests of a process that wait, but for one message of each: a client may choose its keys, and so the number of queues."""
MOST_WAITING = 1_024
"""Requests of a process that wait at once; what comes then is denied."""
DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class Waiting:
    """What waits in this process, counted."""

    def __init__(self, most: int = MOST_WAITING, most_bytes: int = MOST_BUFFERED_IN_ALL) -> None:
        self.requests = 0
        self.bytes = 0
        self._most = most
        self._most_bytes = most_bytes
        self._lock = Lock()

    @property
    def is_full(self) -> bool:
        return self.requests >= self._most

    @property
    def may_buffer(self) -> bool:
        return self.bytes < self._most_bytes

    @contextmanager
    def place(self) -> Iterator[None]:
        with self._lock:
            self.requests += 1
        try:
            yield
        finally:
            with self._lock:
                self.requests -= 1

    def buffer(self, size: int) -> None:
        """So much more; or less, below zero."""
        with self._lock:
            self.bytes += size


WAITING = Waiting()


def deny_instead(verdict: Verdict) -> Verdict:
    """There is a place in the queue, but none to wait in: the verdict of a request that has to come back when its delay is over."""
    delays = [
        verdict.decisions[place].outcome[4] if place in verdict.match.enforced else 0
        for place in range(len(verdict.decisions))
    ]
    longest = delays.index(max(delays))
    decision = verdict.decisions[longest]
    _, remaining, _, reset_us, delay_us = decision.outcome
    denied = decision._replace(outcome=(False, remaining, delay_us, reset_us, 0))
    decisions = (*verdict.decisions[:longest], denied, *verdict.decisions[longest + 1 :])
    rule = verdict.rules[longest]
    return verdict._replace(allowed=False, delay=0.0, denied_by=rule, decisions=decisions)


class DelayedRequest:
    """`receive` is the app's `receive`: first what was buffered, then what the server brings."""

    def __init__(self, receive: Receive, waiting: Waiting = WAITING) -> None:
        self._receive = receive
        self._waiting = waiting
        self._buffer: deque[Message] = deque()
        self._bytes = 0
        # A pending receive is never cancelled: the server might already have taken the message out of its queue.
        self._next: asyncio.Future[Any] | None = None

    async def wait(self, seconds: float, timer: Timer) -> bool:
        """Wait out the delay; False if the client leaves meanwhile."""
        return await self.wait_for(asyncio.ensure_future(timer.asleep(seconds)))

    async def wait_for(self, over: asyncio.Future[Any]) -> bool:
        """Until this is over, or, False, the client leaves."""
        try:
            while not over.done():
                if self._bytes > MOST_BUFFERED or not self._waiting.may_buffer:
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
            message = self._buffer.popleft()
            self._waiting.buffer(-_size(message))
            return message
        if self._next is not None:
            pending = self._next
            message = await asyncio.shield(pending)
            if self._next is pending:
                self._next = None
            return message
        return await self._receive()

    def close(self) -> None:
        """The request is over; nothing more is received."""
        if self._next is not None:
            self._next.cancel()
        self._waiting.buffer(-sum(map(_size, self._buffer)))
        self._buffer.clear()

    def _store(self, done: asyncio.Future[Any]) -> bool:
        """Whether it says that the client has left."""
        message: Message = done.result()
        self._next = None
        self._buffer.append(message)
        self._bytes += _size(message)
        self._waiting.buffer(_size(message))
        return message["type"] in DISCONNECTS


def _size(message: Message) -> int:
    return len(message.get("body") or b"")
