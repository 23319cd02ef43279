"""A client's WebSocket: uvicorn's protocol, and what it keeps for clients that send much and read nothing.

| uvicorn with websockets | here |
|---|---|
| answers every ping, whether the client reads or not | while it does not, only the last one, when it reads again |
| makes messages of all that came at once, though the app has not taken the first | of a few KiB; the rest stays bytes |
| keeps each fragment of a message apart | one growing buffer |
| closes a connection whose client answers no ping, but waits until it has read the rest | cuts it |
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGIReceiveEvent
from websockets.frames import Frame

from diana.gateway.client_limits import DEFAULT, ClientLimits, ConnectionLimit
from diana.gateway.read_backlog import SLICE_SECONDS
from diana.gateway.slow_readers import UnsentWatch
from diana.gateway.uvicorn_aiohttp_internals import WebSocketsSansIOProtocol

LITTLE = 512
"""Bytes that are read as soon as they come; what is more waits for its pass of the event loop."""
SMALLEST_PIECE, LARGEST_PIECE = 64, 65_536
"""Bytes that are read at once: few while messages are small, since each of them weighs fifty times its bytes; many within a large one."""


class ClientSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol for clients that do not read, or not what they asked for."""

    def __init__(
        self, *args: Any, limit: ConnectionLimit, bounds: ClientLimits = DEFAULT, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._limit = limit
        self._bounds = bounds
        self._unread = memoryview(b"")
        self._piece = SMALLEST_PIECE
        self._pong = b""
        """For the last ping that came while the client did not read."""
        self._unsent: UnsentWatch | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._unsent = UnsentWatch(self.transport, self.loop, self._bounds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.remove(self.transport)
        self._unread = memoryview(b"")
        if self._unsent is not None:
            self._unsent.end()
        self.writable.set()  # else what waits to be sent would wait for ever
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self.writable.clear()
        if self._unsent is not None:
            self._unsent.begin()

    def resume_writing(self) -> None:
        self.writable.set()
        if self._unsent is not None:
            self._unsent.end()
        if self._pong and not self.transport.is_closing():
            pong, self._pong = self._pong, b""
            self.transport.write(pong)

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            super().data_received(data)  # the head, which was read before
        elif len(data) <= LITTLE and not self._unread:
            self._take(memoryview(data))
        else:
            self._unread = memoryview(b"".join((self._unread, data)) if self._unread else data)
            self._read_later()

    async def receive(self) -> ASGIReceiveEvent:
        message = await self.queue.get()
        if self._unread and self.queue.empty():
            self._limit.backlog.add(self._take_the_rest, self.loop)
        else:
            self._take_the_rest()
        return message

    def handle_ping(self) -> None:
        pongs = self.conn.data_to_send()
        if not pongs:
            return  # this one was answered with those before it
        if self.writable.is_set():
            self.transport.write(b"".join(pongs))
        else:
            self._pong = pongs[-1]

    def handle_cont(self, event: Frame) -> None:
        whole: Any = self.frames[0]
        if not isinstance(whole, bytearray):
            whole = bytearray(whole)
            self.frames = [whole]
        whole += event.data
        if event.fin:
            self.frames = [bytes(whole)]
            self.send_receive_event_to_app()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()

    def _take(self, data: memoryview) -> None:
        """Until there is a message that the app has not taken, and for no longer than others may wait."""
        began = self.loop.time()
        while data and not self.read_paused and not self.transport.is_closing():
            piece, data = data[: self._piece], data[self._piece :]
            super().data_received(bytes(piece))
            took = self.loop.time() - began
            if self.read_paused or took > SLICE_SECONDS:
                self._piece = SMALLEST_PIECE
            elif took < SLICE_SECONDS / 2:
                self._piece = min(2 * self._piece, LARGEST_PIECE)
            if took > SLICE_SECONDS:
                break
        self._unread = memoryview(b"") if self.transport.is_closing() else data
        if self._unread:
            self._read_later()

    def _read_later(self) -> None:
        """When it is this connection's pass; or, if the app has messages to take first, when it has."""
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()
        if self.queue.empty():
            self._limit.backlog.add(self._take_the_rest, self.loop)

    def _take_the_rest(self) -> None:
        if self.read_paused and self.queue.empty() and not self.transport.is_closing():
            self.read_paused = False
            self._take(self._unread)
            if not self.read_paused and not self.transport.is_closing():
                self.transport.resume_reading()
