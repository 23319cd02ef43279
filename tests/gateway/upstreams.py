"""Real servers behind and before the gateway: sockets in threads, closed when their block ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from diana.core.filter_settings import App
from diana.gateway.app import gateway
from diana.gateway.client_limits import DEFAULT, ClientLimits
from diana.gateway.server import bound_socket, served_beside
from diana.gateway.upstream import upstream_from_url
from diana.guard import AsyncGuard
from diana.rules.loading import rules_from_bytes

PATIENCE = 20.0
"""Seconds; a test that waits so long has failed."""
HEEDING = ["env", "--default-signal=INT"]
"""Before a command: a test run in the background ignores SIGINT, and so would its children. Not by `preexec_fn`, which may
deadlock while other threads run."""
OPEN = "limits: [{url: /, rules: [{unit: second, rpu: 1000000}]}]"
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

Behave = Callable[[socket.socket, bytes], None]


def says(answer: bytes) -> Behave:
    return lambda connection, _: connection.sendall(answer)


class Upstream:
    """A server that says exactly what a test wants, byte by byte, and remembers every head."""

    def __init__(self, behave: Behave) -> None:
        self._behave = behave
        self.heads: list[bytes] = []
        self.connections = 0
        self.gone = threading.Event()
        """Set when somebody closed a connection."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # A thread that waits in accept would keep the socket open.
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        with connection:
            try:
                while head := read_head(connection):
                    self.heads.append(head)
                    self._behave(connection, head)
            except OSError:
                pass
            self.gone.set()


@contextmanager
def upstream(behave: Behave) -> Iterator[Upstream]:
    server = Upstream(behave)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def listening(app: App, *, bounds: ClientLimits = DEFAULT) -> Iterator[int]:
    with (
        bound_socket("127.0.0.1", 0) as bound,
        served_beside(app, bound, bounds=bounds),
    ):
        yield bound.getsockname()[1]


@contextmanager
def gateway_to(
    url: str,
    rules: str = OPEN,
    *,
    own_host: bool = False,
    connect_timeout: float = 5.0,
    read_timeout: float = 20.0,
    **bounds: float,
) -> Iterator[int]:
    target = upstream_from_url(
        url, own_host=own_host, connect_timeout=connect_timeout, read_timeout=read_timeout
    )
    guard = AsyncGuard(rules_from_bytes(rules.encode()))
    patience = ClientLimits(**bounds)  # type: ignore[arg-type]
    app = gateway(guard, target, bounds=patience)
    with listening(app, bounds=patience) as port:
        yield port


def read_head(connection: socket.socket) -> bytes:
    """Byte by byte, so that nothing behind it is taken; empty at the end."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            return b""
        head += byte
    return head


def read_exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        assert more, f"it ended after {found!r}"
        found += more
    return found


def connected(port: int, seconds: float = PATIENCE) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), seconds)


@contextmanager
def answered_in_time(port: int, request: bytes) -> Iterator[tuple[socket.socket, bytes]]:
    """A connection on which this was answered, and the head of the answer.

    A gateway that is impatient with heads hangs up on us, when we stand still before we have sent one: then once more.
    """
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with connected(port) as client:
            head = b""
            with suppress(ConnectionError):
                client.sendall(request)
                head = read_head(client)
            if head:
                yield client, head
                return
    raise AssertionError("it hangs up every time")


def get(target: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: shop", *lines, "", ""]).encode()


def ask(port: int, request: bytes, seconds: float = PATIENCE) -> bytes:
    """The whole answer, on a connection that ends with it."""
    with connected(port, seconds) as client:
        client.sendall(request.replace(b"Host: shop", b"Host: shop\r\nConnection: close", 1))
        return to_the_end(client)


def to_the_end(client: socket.socket) -> bytes:
    found = b""
    while more := client.recv(65_536):
        found += more
    return found


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def lines_of(head: bytes) -> list[tuple[str, str]]:
    lines = head.split(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    return [(name.lower(), value.strip()) for name, _, value in (x.partition(":") for x in lines)]
