"""WebSockets through the gateway: real clients and real upstreams on both sides."""

from __future__ import annotations

import socket as sockets
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import Server, ServerConnection, serve

from diana.gateway.sample_app import sample
from tests.gateway.upstreams import (
    HELLO,
    OPEN,
    PATIENCE,
    connected,
    gateway_to,
    get,
    lines_of,
    listening,
    read_head,
    says,
    status_of,
    to_the_end,
    upstream,
)
from tests.servers.waiting import until

ended: list[tuple[int | None, str | None]] = []


def talk(socket: ServerConnection) -> None:
    path = socket.request.path if socket.request else ""
    if path == "/bye":
        return socket.close(4001, "until tomorrow")
    if path == "/lost":
        return socket.socket.shutdown(sockets.SHUT_RDWR)
    try:
        for message in socket:
            socket.send(message)
    finally:
        ended.append((socket.close_code, socket.close_reason))
    return None


def only_with_a_cookie(socket: ServerConnection, request: Any) -> Any:
    return socket.respond(403, "no\n") if request.path == "/private" else None


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server: Server = serve(
        talk,
        "127.0.0.1",
        0,
        select_subprotocol=lambda _, offered: next((one for one in offered if one == "b"), None),
        process_request=only_with_a_cookie,
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    limited = "limits: [{url: /once, rules: [{unit: hour, rpu: 1, status: 429}]}]"
    with gateway_to(url, limited) as port:
        yield port
    server.shutdown()
    thread.join()


def client(port: int, path: str = "/", **options: Any) -> ClientConnection:
    opened: ClientConnection = connect(
        f"ws://127.0.0.1:{port}{path}", open_timeout=PATIENCE, **options
    )
    return opened


def opened_in_time(port: int) -> ClientConnection:
    """A gateway that is impatient with heads hangs up on us, when we stand still in the middle of a handshake: then once more."""
    for _ in range(100):
        with suppress(InvalidMessage, ConnectionError):
            return client(port)
    raise AssertionError("it hangs up every time")


def test_messages_go_to_and_fro(port: int) -> None:
    with client(port) as socket:
        for message in ("hello", b"\x00\xff", "", "\u20ac" * 100_000, b"x" * 1_000_000):
            socket.send(message)
            assert socket.recv(PATIENCE) == message


def test_the_sample_service_echoes() -> None:
    with (
        listening(sample) as behind,
        gateway_to(f"http://127.0.0.1:{behind}") as port,
        client(port) as socket,
    ):
        socket.send("hello")
        assert socket.recv(PATIENCE) == "hello"


def test_the_upstream_chooses_the_protocol(port: int) -> None:
    with client(port, subprotocols=["a", "b"]) as socket:
        assert socket.subprotocol == "b"


def test_the_closing_word_of_the_upstream_arrives(port: int) -> None:
    with client(port, "/bye") as socket, pytest.raises(ConnectionClosed) as closed:
        socket.recv(PATIENCE)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "until tomorrow")


def test_the_closing_word_of_the_client_arrives(port: int) -> None:
    with client(port) as socket:
        socket.close(4002, "done")
    until(lambda: (4002, "done") in ended, "the upstream has heard it", within=PATIENCE)


def test_an_upstream_that_is_lost_is_no_normal_end(port: int) -> None:
    with client(port, "/lost") as socket, pytest.raises(ConnectionClosed) as closed:
        socket.recv(PATIENCE)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011


def test_the_handshake_is_limited(port: int) -> None:
    with client(port, "/once") as socket:
        socket.send("hello")
        assert socket.recv(PATIENCE) == "hello"
    with pytest.raises(InvalidStatus) as refused:
        client(port, "/once")
    assert refused.value.response.status_code == 429
    assert "Retry-After" in refused.value.response.headers


def test_a_handshake_that_the_upstream_refuses_is_refused(port: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        client(port, "/private")
    assert refused.value.response.status_code == 403


def test_an_upstream_that_speaks_no_websocket_is_a_502() -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url) as port:
        with pytest.raises(InvalidStatus) as refused:
            client(port, "/a%2Fb?c", origin="http://shop", additional_headers={"X-Own": "1"})
        assert refused.value.response.status_code == 502
        assert service.heads[0].startswith(b"GET /a%2Fb?c HTTP/1.1\r\n")
        lines = dict(lines_of(service.heads[0]))
        assert (lines["origin"], lines["x-own"]) == ("http://shop", "1")
        assert lines["x-forwarded-for"] == "127.0.0.1"
        assert lines["upgrade"] == "websocket"


def test_filters_guard_handshakes_too() -> None:
    rules = f"filters: [access: {{deny: 127.0.0.1}}]\n{OPEN}"
    with (
        listening(sample) as behind,
        gateway_to(f"http://127.0.0.1:{behind}", rules) as port,
        pytest.raises(InvalidStatus) as refused,
    ):
        client(port)
    assert refused.value.response.status_code == 403


HANDSHAKE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)
REFUSED = {
    "a long line": ("/", [f"X: {'y' * 9_000}"], 431),
    "a long path": (f"/{'y' * 9_000}", [], 431),
    "many lines": ("/", ["a: b"] * 130, 431),
    "a body": ("/", ["Content-Length: 3"], 400),
    "a body in chunks": ("/", ["Transfer-Encoding: chunked"], 400),
    "a fragment": ("/a?b#c", [], 400),
    "no path": ("m://evil/a", [], 400),
    "another host's path": ("http://evil/a", [], 400),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_handshake_that_cannot_be_made_is_answered(port: int, kind: str) -> None:
    target, lines, status = REFUSED[kind]
    with connected(port) as socket:
        socket.sendall(get(target, *lines, *HANDSHAKE))
        assert status_of(to_the_end(socket)) == status


@pytest.mark.parametrize("lines", [["Content-Length: 0"], ["a: b"] * 110, [f"X: {'y' * 7_900}"]])
def test_a_handshake_within_the_bounds_is_made(port: int, lines: list[str]) -> None:
    with connected(port) as socket:
        socket.sendall(get("/", *lines, *HANDSHAKE))
        assert status_of(read_head(socket)) == 101


def test_an_upstream_that_is_silent_at_a_handshake_is_a_504() -> None:
    def is_silent(connection: sockets.socket, _: bytes) -> None:
        connection.recv(1)

    with (
        upstream(is_silent) as service,
        gateway_to(service.url, read_timeout=0.3) as port,
        connected(port) as socket,
    ):
        socket.sendall(get("/", *HANDSHAKE))
        assert status_of(to_the_end(socket)) == 504


def test_a_websocket_may_be_silent_for_longer_than_a_head_may_take() -> None:
    with (
        listening(sample) as behind,
        gateway_to(f"http://127.0.0.1:{behind}", head_seconds=0.05) as port,
        opened_in_time(port) as socket,
    ):
        with pytest.raises(TimeoutError):
            socket.recv(0.3)
        socket.send("hello")
        assert socket.recv(PATIENCE) == "hello"
