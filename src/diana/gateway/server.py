"""uvicorn, set up for a gateway: nothing added to answers, nobody's headers believed, clients bounded, an end that waits."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from uvicorn import Config, Server

from diana.core.errors import ConfigError
from diana.gateway.client_limits import DEFAULT, ClientLimits, ConnectionLimit, most_connections
from diana.gateway.http_protocol import ClientConnection
from diana.gateway.proxy import UpstreamLost
from diana.gateway.websocket_protocol import ClientSocket
from diana.web.asgi_types import App

KEEP_ALIVE_SECONDS = 75


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        shown = f"[{host}]" if ":" in host else host
        raise ConfigError(f"cannot listen on {shown}:{port}: {error.strerror}") from None


def serve(
    app: App,
    listening: socket.socket,
    *,
    grace_seconds: int,
    bounds: ClientLimits = DEFAULT,
    announce: Callable[[], None] = lambda: None,
) -> None:
    """Until SIGINT or SIGTERM, which are heeded from before the announcement on; then whatever is under way may finish, for so long."""
    server = _server(app, grace_seconds, bounds)
    with _heeded_signals(server):
        announce()
        server.run(sockets=[listening])


@contextmanager
def served_beside(
    app: App, listening: socket.socket, *, bounds: ClientLimits = DEFAULT
) -> Iterator[None]:
    """The same in a thread of its own, as long as the block lasts."""
    server = _server(app, grace_seconds=1, bounds=bounds)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _server(app: App, grace_seconds: int, bounds: ClientLimits) -> Server:
    log = logging.getLogger("uvicorn.error")
    log.setLevel(logging.ERROR)  # who sends no HTTP is told so; it is no line of ours
    if not any(isinstance(known, _Expected) for known in log.filters):
        log.addFilter(_Expected())
    limit = ConnectionLimit(most_connections(bounds.connections), bounds.body_seconds)
    return Server(
        Config(
            app,
            http=partial(ClientConnection, limit=limit, bounds=bounds),  # type: ignore[arg-type]
            ws=partial(ClientSocket, limit=limit, bounds=bounds),  # type: ignore[arg-type]
            # A kilobyte of deflated nothing is a megabyte upstream.
            ws_per_message_deflate=False,
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
def _heeded_signals(server: Server) -> Iterator[None]:
    """uvicorn raises a signal again when it has shut down; by then it has been heeded. One that comes before it listens is not lost."""

    def heeded(*_: Any) -> None:
        server.should_exit = True

    before = {each: signal.signal(each, heeded) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handling in before.items():
            signal.signal(each, handling)
