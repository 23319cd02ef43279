"""A bad network: a proxy between client and server whose faults are chosen while it runs."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from tests.servers import faults
from tests.servers.faults import Fault
from tests.servers.ports import HOST, free_ports
from tests.servers.proxied import Proxied


class FaultProxy:
    """Passes everything on to the server's port, until told otherwise.

    It runs in a thread of its own. When a method returns, the fault is in force, for open connections too.
    """

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.accepted = 0
        """Connections, since the start."""
        self.bytes_asked = 0
        """By clients, since the start, whatever became of them."""
        self.bytes_heard = 0
        """From the server, since the start, once they are passed on, spoilt or swallowed."""
        self.bytes_answered = 0
        """To clients, since the start."""
        self.fault = faults.passing()
        self.changed = asyncio.Event()
        """Set once another fault is chosen; each fault has its own."""
        self._connections: set[Proxied] = set()
        self._listener: socket.socket | None = _listening_somewhere()
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._loop.add_reader(self._listener, self._accept, self._listener)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    @property
    def open(self) -> int:
        """Connections, now."""
        return len(self._connections)

    def pass_on(self) -> None:
        """No fault; after a refusal it listens again."""
        self._choose(faults.passing())

    def black_hole(self) -> None:
        """Accept and swallow; the server hears nothing."""
        self._choose(faults.swallowing(reaches_server=False))

    def mute(self) -> None:
        """The server hears and acts; the client never learns of it."""
        self._choose(faults.swallowing(reaches_server=True))

    def delay(self, seconds: float) -> None:
        """Every answer comes so much later; several at once are not held up by each other."""
        self._choose(faults.delaying(seconds))

    def drip(self, seconds_per_byte: float) -> None:
        """Every answer comes byte by byte."""
        self._choose(faults.dripping(seconds_per_byte))

    def garbage(self, junk: bytes = faults.JUNK) -> None:
        """The server acts, but junk comes in place of its answers."""
        self._choose(faults.spoiling(junk))

    def half_reply(self, first: int = 2) -> None:
        """Only the first bytes of an answer come. The rest follows when another fault is chosen."""
        self._choose(faults.halving(first))

    def sometimes(self, fault: Fault, share: float, seed: int = 1) -> None:
        """A fault of that share of the answers."""
        self._choose(faults.sometimes(fault, share, seed))

    def refuse(self) -> None:
        """Stop listening, and reset what is open."""
        self._do(self._refuse())

    def cut(self) -> None:
        """Reset what is open, now. New connections meet the same fault as before."""
        self._do(self._reset())

    def stop(self) -> None:
        self._do(self._refuse())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(timeout=30)

    def _choose(self, fault: Fault) -> None:
        self._do(self._change(fault))

    async def _change(self, fault: Fault) -> None:
        self.fault = fault
        self.changed.set()
        self.changed = asyncio.Event()
        if self._listener is None:
            self._listener = _listening_on(self.port)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        # Not by `loop.sock_accept`, which may drop a connection, still open, when it is cancelled.
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self.accepted += 1
        connection = Proxied(self, client)
        self._connections.add(connection)
        connection.task.add_done_callback(lambda _: self._connections.discard(connection))

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self._reset()

    async def _reset(self) -> None:
        ending = [connection.reset() for connection in self._connections]
        if ending:
            await asyncio.wait(ending)


def _listening_somewhere() -> socket.socket:
    for port in free_ports():
        try:
            return _listening_on(port)
        except OSError:
            continue
    raise AssertionError("free ports never end")


def _listening_on(port: int) -> socket.socket:
    listener = socket.create_server((HOST, port))
    listener.setblocking(False)
    return listener
