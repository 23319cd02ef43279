"""How much of what a client has sent is read at once: a few requests, and for no longer than others may wait.

A request that was read weighs a hundred times its bytes, and 250 KB hold ten thousand of them; or forty thousand chunks, which take the
event loop a tenth of a second. What is not read yet stays bytes, and no more are taken from the socket.
"""

from __future__ import annotations

import re
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

from diana.gateway.uvicorn_aiohttp_internals import FlowControl

MOST_WAITING = 16
"""Requests that were read on one connection while the one before them is answered; what comes behind them stays unread."""
PIECE = 16_384
"""Bytes that are read without a look at the clock."""
SLICE_SECONDS = 0.000_1
"""So long is read on one connection before others are served."""
_HEADS = re.compile(rb"\r\n\r\n")
_END_OF_HEAD = b"\r\n\r\n"


def is_little(data: bytes) -> bool:
    """No more than may be read at once, as nearly always."""
    return len(data) <= PIECE and data.count(_END_OF_HEAD) <= MOST_WAITING


def up_to_head(data: memoryview, most: int) -> int:
    """How many bytes hold at most so many heads. What looks like the end of one in a body only makes the piece shorter."""
    for found in _HEADS.finditer(data):
        most -= 1
        if not most:
            return found.end()
    return len(data)


class Backlog:
    """What connections have left to read: one of them in each pass of the event loop, so that all together delay no other client."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, read_on: Callable[[], None], loop: AbstractEventLoop) -> None:
        self._waiting.append(read_on)
        if len(self._waiting) == 1:
            loop.call_soon(self._read_one, loop)

    def _read_one(self, loop: AbstractEventLoop) -> None:
        read_on = self._waiting.popleft()
        if self._waiting:
            loop.call_soon(self._read_one, loop)
        read_on()


class ReadGate(FlowControl):
    """uvicorn's flow control, and a second wish not to read on: the connection's own."""

    shut = False

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            if not self.shut:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            if not self.shut:
                self._transport.resume_reading()

    def close(self) -> None:
        if not self.shut:
            self.shut = True
            if not self.read_paused:
                self._transport.pause_reading()

    def open(self) -> None:
        if self.shut:
            self.shut = False
            if not self.read_paused:
                self._transport.resume_reading()
