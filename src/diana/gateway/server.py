"""uvicorn, set up for a gateway: nothing added to answers, nobody's headers believed, heads bounded, an end that waits."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from diana.core.errors import ConfigError
from diana.gateway.proxy import UpstreamLost
from diana.middleware.asgi import App

LARGEST_HEAD = 131_072
"""Bytes of a request's head; uvicorn's parser alone would read on as long as a client sends."""
HEAD_SECONDS = 60.0
"""So long may a client take for a head."""
KEEP_ALIVE_SECONDS = 75
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 24\r\nconnection: close\r\n\r\n"
    b"The head is too large.\r\n"
)


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's protocol for clients whose heads never end."""

    _head: int | None = 0
    """Bytes of the head that is coming; None while a body is."""
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._patience = self.loop.call_later(HEAD_SECONDS, self._lose_patience)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += len(data)
            if self._head > LARGEST_HEAD:
                self.transport.write(TOO_LARGE)
                self.transport.close()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0 if self._head is None else self._head

    def on_headers_complete(self) -> None:
        self._head = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)

    def _lose_patience(self) -> None:
        self.transport.close()


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        shown = f"[{host}]" if ":" in host else host
        raise ConfigError(f"cannot listen on {shown}:{port}: {error.strerror}") from None


def serve(app: App, listening: socket.socket, *, grace_seconds: int) -> None:
    """Until SIGINT or SIGTERM; then whatever is under way may finish, for so long."""
    with _heeded_signals():
        _server(app, grace_seconds).run(sockets=[listening])


@contextmanager
def served_beside(app: App, listening: socket.socket) -> Iterator[None]:
    """The same in a thread of its own, as long as the block lasts."""
    server = _server(app, grace_seconds=1)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _server(app: App, grace_seconds: int) -> Server:
    log = logging.getLogger("uvicorn.error")
    log.setLevel(logging.ERROR)  # who sends no HTTP is told so; it is no line of ours
    if not any(isinstance(known, _Expected) for known in log.filters):
        log.addFilter(_Expected())
    return Server(
        Config(
            app,
            http=BoundedHeads,
            lifespan="on",
            log_config=None,
            access_log=False,
            # Date and Server are the upstream's; X-Forwarded-* is read by the rules of trusted proxies, and by nobody else.
            date_header=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=grace_seconds,
        )
    )


class _Expected(logging.Filter):
    """What is no error of the gateway: an upstream that broke off, the end of the grace, a handshake that was refused on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, UpstreamLost | asyncio.CancelledError):
            return False
        return "without completing handshake" not in record.getMessage()


@contextmanager
def _heeded_signals() -> Iterator[None]:
    """uvicorn raises a signal again when it has shut down; by then it has been heeded."""

    def heeded(*_: Any) -> None:
        return None

    before = {each: signal.signal(each, heeded) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handling in before.items():
            signal.signal(each, handling)
