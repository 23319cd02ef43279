"""The gateway's app under a server that speaks HTTP/2: bodies without a length, and paths that no HTTP/1 line could hold."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded
from hypercorn.asyncio import serve
from hypercorn.config import Config

from diana.core.filter_settings import App
from diana.gateway.app import gateway
from diana.gateway.filters.signature import signature_lines
from diana.gateway.upstream import upstream_from_url
from diana.guard import AsyncGuard
from diana.rules.loading import rules_from_bytes
from tests.gateway.upstreams import (
    HELLO,
    OPEN,
    PATIENCE,
    Upstream,
    connected,
    lines_of,
    read_exactly,
    upstream,
)

SECRET = b"correct horse battery staple"
SIGNED = f"filters: [signature: {{keys: {{app: env DIANA_TEST_KEY}}}}]\n{OPEN}"


@contextmanager
def hypercorn(app: App) -> Iterator[int]:
    """In a thread, on a free port, until the block ends."""
    bound = socket.create_server(("127.0.0.1", 0))
    config = Config()
    config.bind = [f"fd://{bound.fileno()}"]
    config.graceful_timeout = 0.1
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve(app, config, shutdown_trigger=over.wait))  # type: ignore[arg-type]
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    port = bound.getsockname()[1]
    bound.detach()  # it is the server's now
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


bodies: list[bytes] = []


def reads_all(connection: socket.socket, head: bytes) -> None:
    lines, body = dict(lines_of(head)), b""
    if lines.get("transfer-encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n"):
            more = connection.recv(65_536)
            if not more:
                return  # it breaks off; asking for more would go on for ever
            body += more
    else:
        body = read_exactly(connection, int(lines.get("content-length", 0)))
    bodies.append(body)
    connection.sendall(HELLO)


@contextmanager
def gateway_over_http2(rules: str = OPEN) -> Iterator[tuple[int, Upstream]]:
    bodies.clear()
    with upstream(reads_all) as service:
        app = gateway(AsyncGuard(rules_from_bytes(rules.encode())), upstream_from_url(service.url))
        with hypercorn(app) as port:
            yield port, service


def post(port: int, path: str, pieces: Iterable[bytes], **headers: str) -> httpx.Response:
    """A body given as pieces is sent without a length."""
    with httpx.Client(http1=False, http2=True, timeout=PATIENCE) as client:
        return client.post(f"http://127.0.0.1:{port}{path}", content=pieces, headers=headers)


def in_pieces(*pieces: bytes) -> Iterator[bytes]:
    yield from pieces


def test_a_body_without_a_length_reaches_the_upstream() -> None:
    with gateway_over_http2() as (port, service):
        answer = post(port, "/", in_pieces(b"hello ", b"world"))
        assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
        assert "content-length" not in answer.request.headers
        told = dict(lines_of(service.heads[0]))
        if "content-length" in told:  # the server had all of it at once
            assert bodies == [b"hello world"]
        else:
            assert told["transfer-encoding"] == "chunked"
            assert b"".join(bodies[0].split(b"\r\n")[1::2]) == b"hello world"


def test_a_request_without_a_body_stays_without() -> None:
    with gateway_over_http2() as (port, service):
        with httpx.Client(http1=False, http2=True, timeout=PATIENCE) as client:
            assert client.get(f"http://127.0.0.1:{port}/").status_code == 200
        told = dict(lines_of(service.heads[0]))
        assert "transfer-encoding" not in told
        assert "content-length" not in told


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Upstream]]:
    monkeypatch.setenv("DIANA_TEST_KEY", SECRET.decode())
    with gateway_over_http2(SIGNED) as served:
        yield served


def lines(body: bytes = b"", method: str = "POST") -> dict[str, str]:
    return signature_lines("app", SECRET, method, "/", time.time_ns() // 1_000, body)


def test_a_body_that_was_not_signed_never_reaches_the_upstream(
    signed: tuple[int, Upstream],
) -> None:
    port, _ = signed
    answer = post(port, "/", in_pieces(b"unsigned"), **lines())
    assert answer.status_code == 400
    other = post(port, "/", in_pieces(b"unsigned"), **lines(b"signed!!"))
    assert other.status_code == 400
    assert [body for body in bodies if body] == []
    assert post(port, "/", in_pieces(b"signed!!"), **lines(b"signed!!")).status_code == 200
    assert b"signed!!" in bodies[-1] or b"signed!" in bodies[-1]


def test_a_signed_request_without_a_body_passes(signed: tuple[int, Upstream]) -> None:
    port, service = signed
    with httpx.Client(http1=False, http2=True, timeout=PATIENCE) as client:
        answer = client.get(f"http://127.0.0.1:{port}/", headers=lines(method="GET"))
    assert answer.status_code == 200
    assert len(service.heads) == 1


def raw_get(port: int, path: bytes) -> int:
    """With a path that no honest client sends; the status."""
    h2 = H2Connection(
        H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    )
    with connected(port) as client:
        h2.initiate_connection()
        h2.send_headers(
            1,
            [
                (b":method", b"GET"),
                (b":path", path),
                (b":scheme", b"http"),
                (b":authority", b"shop"),
            ],
            end_stream=True,
        )
        client.sendall(h2.data_to_send())
        status = 0
        while True:
            more = client.recv(65_536)
            assert more, "it hung up"
            for event in h2.receive_data(more):
                if isinstance(event, ResponseReceived):
                    status = int(dict(event.headers)[b":status"])
                elif isinstance(event, DataReceived):
                    pass
                elif isinstance(event, StreamEnded):
                    return status


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (b"/pri\tvate?a\tb", b"/pri%09vate?a%09b"),
        (b"/a b", b"/a%20b"),
        (b"/a\x7f\x01", b"/a%7F%01"),
        (b"/a~!b", b"/a~!b"),
    ],
)
def test_what_no_line_may_hold_goes_on_encoded(path: bytes, sent: bytes) -> None:
    with gateway_over_http2() as (port, service):
        assert raw_get(port, path) == 200
        assert service.heads[0].startswith(b"GET " + sent + b" HTTP/1.1\r\n")
