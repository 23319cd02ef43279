"""Connections to one server, opened before somebody has to wait for them, by a thread of their own.

One thread per server: a frozen one holds up nobody who needs another.
"""

from __future__ import annotations

import socket
from queue import SimpleQueue
from threading import Thread, current_thread
from time import monotonic

from diana.stores.redis.background.control import EXPECTED
from diana.stores.redis.connection.server import Server
from diana.stores.redis.connection.threads import CONNECT_SECONDS, Link, open_socket
from diana.stores.redis.protocol.commands import Lost, hear


class Connector:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._called: SimpleQueue[None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._work, name="diana-connector", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._called.put(None)

    def stop(self) -> None:
        self._closed = True
        self.wake()

    def join(self, seconds: float) -> None:
        if self._thread is not current_thread():
            self._thread.join(seconds)

    def _work(self) -> None:
        while not self._closed:
            if not self._server.down:
                try:
                    self._serve()
                except Lost as error:
                    self._server.lost(error)
            self._called.get()

    def _serve(self) -> None:
        server = self._server
        while not self._closed and (turn := server.next_turn()) is not None:
            greeted = self._opened()
            server.turn_is_served()
            try:
                turn.loop.call_soon_threadsafe(turn.attach, greeted)
            except RuntimeError:  # the loop is closed
                greeted.close()
        while not self._closed and server.is_short_of_links():
            server.add_link(self._opened())

    def _opened(self) -> socket.socket:
        """A socket; before the first is used, the server's time is heard, or that command could not say how long it may write."""
        server = self._server
        greeted = open_socket(server.endpoint, server.greeting)
        if not server.clock.is_set:
            try:
                Link(greeted).converse(hear(server.clock), monotonic() + CONNECT_SECONDS)
            except EXPECTED as error:
                greeted.close()
                raise Lost(str(error)) from None
        return greeted
