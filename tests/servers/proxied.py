"""One connection through a proxy: the client's, and the server's that belongs to it."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import aclosing, suppress
from typing import Protocol

from tests.servers.faults import Fault, Pause
from tests.servers.ports import HOST

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_PIECE = 65_536


class Network(Protocol):
    """What a connection looks at and keeps up to date; all of it may change at any moment."""

    server_port: int
    fault: Fault
    changed: asyncio.Event
    bytes_asked: int
    bytes_heard: int
    bytes_answered: int


class Proxied:
    """Carries bytes both ways until one side ends. The server's side opens when the first byte goes there."""

    def __init__(self, network: Network, client: socket.socket) -> None:
        self._network = network
        self._client = _at_once(client)
        self._server: socket.socket | None = None
        self._pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(self._run())
        # Not in `_run`: a task cancelled before its first step runs nothing.
        self.task.add_done_callback(self._close)

    def reset(self) -> asyncio.Task[None]:
        """End it as a broken line does, with nothing more sent."""
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.task.cancel()
        return self.task

    def _close(self, _: asyncio.Task[None]) -> None:
        self._client.close()
        if self._server is not None:
            self._server.close()

    async def _run(self) -> None:
        connected: asyncio.Future[socket.socket] = self._loop.create_future()
        asking = asyncio.create_task(self._carry_requests(connected))
        collecting = asyncio.create_task(self._collect_pieces(connected))
        answering = asyncio.create_task(self._carry_answers())
        try:
            await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in (asking, collecting, answering):
                way.cancel()
            await asyncio.gather(asking, collecting, answering, return_exceptions=True)

    async def _carry_requests(self, connected: asyncio.Future[socket.socket]) -> None:
        with suppress(OSError):
            while asked := await self._loop.sock_recv(self._client, _PIECE):
                self._network.bytes_asked += len(asked)
                if not self._network.fault.reaches_server:
                    continue
                if self._server is None:
                    self._server = _at_once(socket.socket())
                    await self._loop.sock_connect(self._server, (HOST, self._network.server_port))
                    connected.set_result(self._server)
                await self._loop.sock_sendall(self._server, asked)

    async def _collect_pieces(self, connected: asyncio.Future[socket.socket]) -> None:
        # Apart from passing them on, so that a piece is as late as it shall be, though the one before it is still held back.
        server = await connected
        with suppress(OSError):
            while piece := await self._loop.sock_recv(server, _PIECE):
                self._pieces.put_nowait((self._loop.time(), piece))
        self._pieces.put_nowait((self._loop.time(), b""))

    async def _carry_answers(self) -> None:
        with suppress(OSError):
            while True:
                came, piece = await self._pieces.get()
                if not piece:
                    return
                waited = self._loop.time() - came
                pause = _pause_until(self._network.changed)
                async with aclosing(self._network.fault.answer(piece, waited, pause)) as parts:
                    async for part in parts:
                        await self._loop.sock_sendall(self._client, part)
                        self._network.bytes_answered += len(part)
                self._network.bytes_heard += len(piece)


def _pause_until(changed: asyncio.Event) -> Pause:
    async def pause(seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), seconds)

    return pause


def _at_once(connection: socket.socket) -> socket.socket:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
