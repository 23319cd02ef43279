"""Requests through the gateway to a real upstream and back, byte by byte."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import suppress

import pytest

from tests.gateway.upstreams import (
    HELLO,
    PATIENCE,
    Behave,
    ask,
    connected,
    gateway_to,
    get,
    lines_of,
    read_exactly,
    read_head,
    says,
    status_of,
    to_the_end,
    upstream,
)
from tests.servers.ports import free_port


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/a%2Fb%2f",
        "//evil.example/x",
        "/a/../b/./c//",
        "/a;v=1/b,c/@d:e",
        "/%E2%82%AC?x=%20+&y=[1]&z={}|^",
        "/a?b?c=d&e=/../f",
        "/a?b=%00%0d%0a",
        "/~user/'quoted'/(x)!*$",
    ],
)
def test_paths_and_queries_go_on_byte_for_byte(target: str) -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url) as port:
        assert ask(port, get(target)).endswith(b"hello")
        assert service.heads[0].split(b"\r\n")[0] == f"GET {target} HTTP/1.1".encode()


def test_the_path_of_the_upstream_stands_before_every_path() -> None:
    with upstream(says(HELLO)) as service, gateway_to(f"{service.url}/v1/") as port:
        ask(port, get("//x?y"))
        assert service.heads[0].startswith(b"GET /v1//x?y HTTP/1.1\r\n")


ANSWERS = {
    "a length": (b"200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
    "chunks": (
        b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        200,
        b"hello",
    ),
    "until it closes": (b"200 OK\r\nConnection: close\r\n\r\nhello", 200, b"hello"),
    "nothing": (b"200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
    "204": (b"204 No Content\r\n\r\n", 204, b""),
    "304 with the length of what it is not": (
        b"304 Not Modified\r\nContent-Length: 5\r\n\r\n",
        304,
        b"",
    ),
    "103 before 200": (
        b"103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        200,
        b"ok",
    ),
    "trailers": (
        b"200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n5\r\nhello\r\n0\r\nx: y\r\n\r\n",
        200,
        b"hello",
    ),
    "an error of its own": (b"500 Oh\r\nContent-Length: 2\r\n\r\nno", 500, b"no"),
    "a redirect": (b"302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n", 302, b""),
    "gzip that is none": (
        b"200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        200,
        b"hello",
    ),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_answers_come_back_as_they_are(kind: str) -> None:
    said, status, body = ANSWERS[kind]

    def behave(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 " + said)
        if b"Connection: close" in said:
            connection.shutdown(socket.SHUT_WR)

    with upstream(behave) as service, gateway_to(service.url) as port:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        for _ in range(2):  # the second shows that the first ended where it should
            client.request("GET", "/")
            answer = client.getresponse()
            assert (answer.status, answer.read()) == (status, body)
            assert answer.headers["Trailer"] is None
        client.close()


def test_head_keeps_the_length_and_has_no_body() -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: x\r\n\r\n"
    with upstream(says(said)) as service, gateway_to(service.url) as port:
        answer = ask(port, get("/", method="HEAD"))
        assert answer.endswith(b"\r\n\r\n")
        assert dict(lines_of(answer))["content-length"] == "5"
        assert service.heads[0].startswith(b"HEAD / ")


def test_a_body_behind_an_answer_to_head_spoils_no_other_answer() -> None:
    """More than the sockets hold: the upstream still sends it while the next request is on its way."""
    body = b"x" * 12_000_000
    said = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with upstream(says(said)) as service, gateway_to(service.url) as port:
        assert ask(port, get("/", method="HEAD")).endswith(b"\r\n\r\n")
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        client.request("GET", "/")
        assert client.getresponse().read() == body
        client.close()


def test_lines_that_come_twice_stay_two() -> None:
    said = HELLO.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\r\n")
    with upstream(says(said)) as service, gateway_to(service.url) as port:
        answer = ask(port, get("/", "Cookie: x", "Accept: a", "Accept: b"))
        cookies = [value for name, value in lines_of(answer) if name == "set-cookie"]
        assert cookies == ["a=1", "b=2"]
        accepted = [value for name, value in lines_of(service.heads[0]) if name == "accept"]
        assert accepted == ["a", "b"]


def test_nothing_is_added_that_the_client_did_not_say() -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url) as port:
        ask(port, b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n")
        names = {name for name, _ in lines_of(service.heads[0])}
        whence = {"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded"}
        assert names == {"host", *whence}


@pytest.mark.parametrize(("own_host", "host"), [(False, "shop"), (True, "127.0.0.1:")])
def test_the_host_is_kept_or_rewritten(own_host: bool, host: str) -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url, own_host=own_host) as port:
        ask(port, get("/"))
        lines = dict(lines_of(service.heads[0]))
        assert lines["host"].startswith(host)
        assert lines["x-forwarded-host"] == "shop"


def test_large_heads_pass_both_ways() -> None:
    large = "x" * 50_000
    said = HELLO.replace(b"\r\n\r\n", f"\r\nX-Large: {large}\r\n\r\n".encode())
    with upstream(says(said)) as service, gateway_to(service.url) as port:
        answer = ask(port, get("/", f"X-Large: {large}"))
        assert dict(lines_of(answer))["x-large"] == large
        assert dict(lines_of(service.heads[0]))["x-large"] == large


def test_a_head_without_end_is_refused() -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url) as port:
        with connected(port) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: shop\r\nX: ")
            with suppress(OSError):  # it stops listening
                for _ in range(100):
                    client.sendall(b"y" * 10_000)
            with suppress(
                ConnectionResetError
            ):  # what was still under way may come after its answer
                assert status_of(to_the_end(client)) == 431
        assert ask(port, get("/")).endswith(b"hello")
        assert len(service.heads) == 1


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["Transfer-Encoding: chunked", "Content-Length: 5"], 400),
        (["Content-Length: 5", "Content-Length: 6"], 400),
        (["Content-Length: +5"], 400),
        (["Transfer-Encoding: gzip, chunked"], 501),
        (["X : y"], 400),
    ],
)
def test_a_body_of_two_lengths_never_reaches_the_upstream(lines: list[str], status: int) -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url) as port:
        assert status_of(ask(port, get("/", *lines, method="POST") + b"0\r\n\r\n")) == status
        assert service.heads == []


def test_uploads_arrive_piece_by_piece_with_their_framing() -> None:
    pieces: list[bytes] = []
    arrived = threading.Semaphore(0)

    def behave(connection: socket.socket, head: bytes) -> None:
        for _ in range(3):
            piece = read_exactly(connection, 10 if b"chunked" in head else 5)
            pieces.append(piece)
            arrived.release()
        if b"chunked" in head:
            read_exactly(connection, 5)
        connection.sendall(HELLO)

    with upstream(behave) as service, gateway_to(service.url) as port:
        for framing in ("Content-Length: 15", "Transfer-Encoding: chunked"):
            chunked = "chunked" in framing
            with connected(port) as client:
                client.sendall(get("/", framing, method="POST"))
                for number in range(3):
                    piece = f"part{number}".encode()
                    client.sendall(b"5\r\n" + piece + b"\r\n" if chunked else piece)
                    # The next piece is not sent before this one has arrived.
                    assert arrived.acquire(timeout=PATIENCE)
                    assert pieces[-1] == (b"5\r\n" + piece + b"\r\n" if chunked else piece)
                if chunked:
                    client.sendall(b"0\r\n\r\n")
                assert read_head(client).startswith(b"HTTP/1.1 200 OK\r\n")
            lines = dict(lines_of(service.heads[-1]))
            assert ("content-length" in lines, "transfer-encoding" in lines) == (
                not chunked,
                chunked,
            )


def test_downloads_arrive_piece_by_piece() -> None:
    taken = threading.Semaphore(0)

    def behave(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n")
        for number in range(3):
            assert taken.acquire(timeout=PATIENCE)
            connection.sendall(f"part{number}".encode())

    with upstream(behave) as service, gateway_to(service.url) as port, connected(port) as client:
        client.sendall(get("/"))
        assert b"content-length: 15" in read_head(client)
        for number in range(3):
            taken.release()
            assert read_exactly(client, 5) == f"part{number}".encode()


def test_a_large_body_passes_whole() -> None:
    size = 5_000_000

    def behave(connection: socket.socket, _: bytes) -> None:
        body = read_exactly(connection, size)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body[::-1])

    body = bytes(range(250)) * (size // 250)
    with upstream(behave) as service, gateway_to(service.url) as port:
        answer = ask(port, get("/", f"Content-Length: {size}", method="PUT") + body)
        assert answer.partition(b"\r\n\r\n")[2] == body[::-1]


def test_who_waits_for_100_gets_it_only_when_the_body_is_wanted() -> None:
    def behave(connection: socket.socket, _: bytes) -> None:
        read_exactly(connection, 5)
        connection.sendall(HELLO)

    rules = "limits: [{url: /, rules: [{unit: hour, rpu: 1}]}]"
    expecting = get("/", "Content-Length: 5", "Expect: 100-continue", method="POST")
    with upstream(behave) as service, gateway_to(service.url, rules) as port:
        with connected(port) as client:
            client.sendall(expecting)
            assert read_head(client) == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.sendall(b"12345")
            assert read_head(client).startswith(b"HTTP/1.1 200 OK")
        with connected(port) as client:
            client.sendall(expecting)
            assert read_head(client).startswith(b"HTTP/1.1 503")
        assert "expect" not in dict(lines_of(service.heads[0]))


def test_an_upstream_may_answer_before_it_has_read_everything() -> None:
    refusal = says(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno")
    with upstream(refusal) as service, gateway_to(service.url) as port, connected(port) as client:
        client.sendall(get("/", "Content-Length: 1000000", method="POST") + b"x" * 1_000)
        assert read_head(client).startswith(b"HTTP/1.1 413")
        assert read_exactly(client, 2) == b"no"


def test_connections_to_the_upstream_are_used_again() -> None:
    with upstream(says(HELLO)) as service, gateway_to(service.url) as port:
        for _ in range(10):
            ask(port, get("/"))
        assert (len(service.heads), service.connections) == (10, 1)


def test_a_connection_that_the_upstream_closed_meanwhile_is_no_error() -> None:
    def behave(connection: socket.socket, _: bytes) -> None:
        connection.sendall(HELLO)
        connection.shutdown(socket.SHUT_RDWR)

    with upstream(behave) as service, gateway_to(service.url) as port:
        assert {ask(port, get("/"))[-5:] for _ in range(20)} == {b"hello"}
        assert service.connections == 20


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
def test_an_answer_that_breaks_off_never_looks_whole(said: bytes) -> None:
    def behave(connection: socket.socket, _: bytes) -> None:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_RDWR)

    with upstream(behave) as service, gateway_to(service.url) as port:
        with connected(port) as client:
            client.sendall(get("/"))
            assert b" 200 OK" in read_head(client)
            assert not to_the_end(client).endswith(b"0\r\n\r\n")
        client2 = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        client2.request("GET", "/")
        with pytest.raises(http.client.IncompleteRead):
            client2.getresponse().read()
        client2.close()


def hangs_up(connection: socket.socket, _: bytes) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def is_silent(connection: socket.socket, _: bytes) -> None:
    connection.recv(1)


def breaks_off(connection: socket.socket, _: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    connection.shutdown(socket.SHUT_RDWR)


FAILURES: dict[str, tuple[Behave, int]] = {
    "it hangs up": (hangs_up, 502),
    "it speaks no HTTP": (says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), 502),
    "its head breaks off": (breaks_off, 502),
    "it changes the protocol": (says(b"HTTP/1.1 101 Off\r\nUpgrade: x\r\n\r\n"), 502),
    "its status is none": (says(b"HTTP/1.1 999 Hm\r\nContent-Length: 0\r\n\r\n"), 502),
    "its lines are none": (says(HELLO.replace(b"\r\n\r\n", b"\r\nX: a\x01b\r\n\r\n")), 502),
    "its names are none": (says(HELLO.replace(b"\r\n\r\n", b"\r\nX (y): a\r\n\r\n")), 502),
    "it has two lengths": (says(HELLO.replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\n")), 502),
    "its transfer coding is not chunked": (
        says(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n\x1f\x8b\r\n0\r\n\r\n"
        ),
        502,
    ),
    "it is silent": (is_silent, 504),
}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("kind", FAILURES)
def test_an_upstream_that_fails_is_told_as_502_or_504(kind: str, method: str) -> None:
    behave, status = FAILURES[kind]
    patience = 0.3 if status == 504 else PATIENCE
    with upstream(behave) as service, gateway_to(service.url, read_timeout=patience) as port:
        answer = ask(port, get("/", "Content-Length: 0", method=method))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert status_of(head) == status
        assert dict(lines_of(head))["content-type"] == "application/problem+json"
        assert json.loads(body)["status"] == status
        assert service.url.encode() not in answer  # whom we asked is nobody's business


def test_an_upstream_that_is_not_there_is_a_502() -> None:
    with gateway_to(f"http://127.0.0.1:{free_port()}") as port:
        answer = ask(port, get("/"))
        assert status_of(answer) == 502
        assert b"cannot be reached" in answer
        assert status_of(ask(port, get("/", "Content-Length: 3", method="POST") + b"abc")) == 502
        assert ask(port, get("/", method="HEAD")).endswith(b"\r\n\r\n")


def test_an_upstream_that_does_not_accept_is_a_504() -> None:
    with socket.socket() as full, socket.socket() as one, socket.socket() as two:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (one, two):  # more than its queue holds
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        with gateway_to(url, connect_timeout=0.3) as port:
            assert status_of(ask(port, get("/"))) == 504


def test_who_leaves_takes_the_request_to_the_upstream_along() -> None:
    asked = threading.Event()

    def behave(connection: socket.socket, _: bytes) -> None:
        asked.set()
        assert connection.recv(1) == b""  # closed by the gateway

    with upstream(behave) as service, gateway_to(service.url) as port:
        with connected(port) as client:
            client.sendall(get("/"))
            assert asked.wait(PATIENCE)
        assert service.gone.wait(PATIENCE)


def test_who_leaves_in_the_middle_of_a_download_ends_it() -> None:
    def behave(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"5\r\nhello\r\n")  # until it is closed

    with upstream(behave) as service, gateway_to(service.url) as port:
        with connected(port) as client:
            client.sendall(get("/"))
            read_head(client)
            read_exactly(client, 5)
        assert service.gone.wait(PATIENCE)


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_who_leaves_in_the_middle_of_an_upload_never_looks_done(framing: str) -> None:
    got: list[bytes] = []
    started = threading.Event()

    def behave(connection: socket.socket, _: bytes) -> None:
        got.append(read_exactly(connection, 5))
        started.set()
        got.append(to_the_end(connection))

    with upstream(behave) as service, gateway_to(service.url) as port:
        with connected(port) as client:
            client.sendall(get("/", framing, method="POST") + b"5\r\nhello\r\n")
            assert started.wait(PATIENCE)
        assert service.gone.wait(PATIENCE)
        sent = b"".join(got)
        assert not sent.endswith(b"0\r\n\r\n")
        assert len(sent) < 100


def test_pipelined_requests_are_answered_in_order() -> None:
    def behave(connection: socket.socket, head: bytes) -> None:
        said = head.split(b" ")[1]
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))

    with upstream(behave) as service, gateway_to(service.url) as port, connected(port) as client:
        client.sendall(get("/1") + get("/22") + get("/333"))
        for said in (b"/1", b"/22", b"/333"):
            assert b" 200 OK" in read_head(client)
            assert read_exactly(client, len(said)) == said
