"""What two servers could read as two different requests never gets as far as the second one."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from diana.core.client_address import Proxies
from diana.gateway.proxy import Proxy
from diana.gateway.upstream import upstream_from_url
from diana.web.asgi_types import Message, Receive, Scope, Send
from tests.gateway.upstreams import (
    HELLO,
    PATIENCE,
    ask,
    connected,
    gateway_to,
    get,
    lines_of,
    listening,
    read_exactly,
    read_head,
    says,
    status_of,
    to_the_end,
    upstream,
)


def reads_on(connection: socket.socket, _: bytes) -> None:
    to_the_end(connection)


UPGRADE = ("Connection: Upgrade", "Upgrade: h2c")


def test_behind_an_upgrade_that_nobody_makes_a_body_is_a_body() -> None:
    asked = threading.Event()

    def behave(connection: socket.socket, head: bytes) -> None:
        asked.set()
        if b"/a" in head:
            to_the_end(connection)
        connection.sendall(HELLO)

    hidden = get("/hidden")
    framing = f"Content-Length: {len(hidden) + 1}"
    with upstream(behave) as service, gateway_to(service.url) as port:
        with connected(port) as client:
            # All but a byte of what was said.
            client.sendall(get("/a", *UPGRADE, framing, method="POST") + hidden)
            assert asked.wait(PATIENCE)
            assert ask(port, get("/next")).endswith(b"hello")
        assert service.gone.wait(PATIENCE)
        assert [head.split(b" ")[1] for head in service.heads] == [b"/a", b"/next"]


@pytest.mark.parametrize("pieces", [1, 1_000])
def test_requests_with_and_without_an_upgrade_are_answered_in_order(pieces: int) -> None:
    def behave(connection: socket.socket, head: bytes) -> None:
        said = head.split(b" ")[1]
        if b"POST" in head:
            said += read_exactly(connection, 15 if b"chunked" in head else 5)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))

    chunks = b"5\r\nhello\r\n0\r\n\r\n"
    sent = (
        get("/1", *UPGRADE)
        + get("/2", *UPGRADE, "Content-Length: 5", method="POST")
        + b"hello"
        + get("/3", *UPGRADE, "Transfer-Encoding: chunked", method="POST")
        + chunks
        + get("/4")
    )
    with upstream(behave) as service, gateway_to(service.url) as port, connected(port) as client:
        size = -(-len(sent) // pieces)
        for start in range(0, len(sent), size):
            client.sendall(sent[start : start + size])
        for said in (b"/1", b"/2hello", b"/3" + chunks, b"/4"):
            assert b" 200 OK" in read_head(client)
            assert read_exactly(client, len(said)) == said
        assert all(b"upgrade" not in head.lower() for head in service.heads)


@pytest.mark.parametrize("body", [b"", b"hello", b"hello, hello"])
def test_a_body_of_another_length_never_leaves_a_connection_for_the_next(body: bytes) -> None:
    with upstream(reads_on) as service:
        proxy = Proxy(upstream_from_url(service.url), Proxies())

        async def miscounting(scope: Scope, receive: Receive, send: Send) -> None:
            """What a server, or a filter, that counts wrong would do."""

            async def once() -> Message:
                return {"type": "http.request", "body": body, "more_body": False}

            await proxy(scope, once if scope["type"] == "http" else receive, send)

        with listening(miscounting) as port:
            assert status_of(ask(port, get("/", "Content-Length: 8", method="POST"))) == 400
            assert service.gone.wait(PATIENCE)


def test_trailers_are_no_headers() -> None:
    rules = "filters: [access: {allow: header X-Staff}]\nlimits: [{url: /, rules: [{unit: second, rpu: 100}]}]"
    body = b"5\r\nhello\r\n0\r\nX-Staff: yes\r\nHost: evil\r\n\r\n"
    with upstream(says(HELLO)) as service, gateway_to(service.url, rules) as port:
        request = get("/", "Transfer-Encoding: chunked", method="POST") + body
        assert status_of(ask(port, request)) == 403
        assert service.heads == []


def test_trailers_reach_nobody() -> None:
    def behave(connection: socket.socket, _: bytes) -> None:
        read_exactly(connection, len(b"5\r\nhello\r\n0\r\n\r\n"))
        connection.sendall(HELLO)

    body = b"5\r\nhello\r\n0\r\nX-Late: yes\r\nExpect: 100-continue\r\n\r\n"
    with upstream(behave) as service, gateway_to(service.url) as port, connected(port) as client:
        for _ in range(2):
            client.sendall(get("/", "Transfer-Encoding: chunked", method="POST") + body)
            assert read_head(client).startswith(b"HTTP/1.1 200 OK")
            read_exactly(client, 5)
        assert all(b"late" not in head.lower() for head in service.heads)


@pytest.mark.parametrize(
    "piece",
    [b"X-%d: %b\r\n" % (1, b"y" * 1_000), b"y" * 1_000],
    ids=["many lines", "one line"],
)
def test_trailers_are_bounded(piece: bytes) -> None:
    asked = threading.Event()

    def behave(connection: socket.socket, _: bytes) -> None:
        asked.set()
        to_the_end(connection)

    with upstream(behave) as service, gateway_to(service.url) as port, connected(port) as client:
        client.sendall(
            get("/", "Transfer-Encoding: chunked", method="POST") + b"5\r\nhello\r\n0\r\nX: "
        )
        assert asked.wait(PATIENCE)
        with suppress(ConnectionError):  # it stops listening
            for _ in range(20_000):
                client.sendall(piece)
            pytest.fail("20 MB of trailers were taken")
        assert service.gone.wait(PATIENCE)


def test_a_small_head_before_a_large_body_is_no_large_head() -> None:
    size = 400_000

    def behave(connection: socket.socket, _: bytes) -> None:
        read_exactly(connection, size)
        connection.sendall(HELLO)

    with upstream(behave) as service, gateway_to(service.url) as port:
        request = get("/", f"Content-Length: {size}", method="POST") + b"x" * size
        assert ask(port, request).endswith(b"hello")


def test_a_large_head_is_refused_even_if_it_comes_at_once() -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url) as port:
        lines = [f"X-{number}: {'y' * 1_000}" for number in range(140)]
        # It stops listening, and what was still under way may come after its answer.
        with connected(port) as client, suppress(ConnectionError):
            client.sendall(get("/", *lines))
            assert status_of(read_head(client)) == 431
        assert service.heads == []


TWO_READINGS = {
    "a fragment": b"GET /a#b HTTP/1.1\r\nHost: shop\r\n\r\n",
    "a fragment behind the query": b"GET /a?b#c HTTP/1.1\r\nHost: shop\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: shop\r\nHost: evil\r\n\r\n",
    "no path": b"OPTIONS * HTTP/1.1\r\nHost: shop\r\n\r\n",
    "a tunnel": b"CONNECT shop:80 HTTP/1.1\r\nHost: shop\r\n\r\n",
}


@pytest.mark.parametrize("kind", TWO_READINGS)
def test_what_has_two_readings_is_a_400(kind: str) -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url) as port:
        with connected(port) as client:
            client.sendall(TWO_READINGS[kind])
            answer = read_head(client)
        assert status_of(answer) == 400
        assert b"application/problem+json" in answer
        assert service.heads == []


def test_an_old_client_needs_no_host_and_gets_no_chunks() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nagain\r\n0\r\n\r\n"
    with upstream(says(chunked)) as service, gateway_to(service.url) as port:
        with connected(port) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            head, _, body = to_the_end(client).partition(b"\r\n\r\n")
        assert body == b"helloagain"
        assert "transfer-encoding" not in dict(lines_of(head))
