"""Clients and upstreams that cost much and send little: each of them is bounded, and others are served meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from diana.gateway.sample_app import sample
from tests.gateway.upstreams import (
    HELLO,
    OPEN,
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

BRIEF = 0.3
LONG = 6 * PATIENCE
"""For megabytes of small frames: `sendall` counts the time for all of them together."""
HANDSHAKE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


@contextmanager
def command(
    url: str, folder: Path, *options: str, descriptors: int = 0
) -> Iterator[tuple[int, int]]:
    """`diana gateway` in a process of its own: its port and its pid."""

    # Not by `preexec_fn`, which may deadlock while other threads run.
    bound = ["prlimit", f"--nofile={descriptors}:{descriptors}"] if descriptors else []
    rules = folder / "rules.yaml"
    rules.write_text(OPEN)
    line = ["--bind", "127.0.0.1:0", "--no-access-log", "--upstream", url, "--rules", str(rules)]
    with subprocess.Popen(
        [*bound, sys.executable, "-m", "diana", "gateway", *line, *options],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            yield int(said.split(" and ")[0].rpartition(":")[2]), process.pid
        finally:
            process.kill()


def peak(pid: int) -> int:
    """Bytes: the most that was ever resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1_024


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


# Pipelining


def test_pipelined_requests_that_wait_are_few_and_all_are_answered(tmp_path: Path) -> None:
    go_on, asked = threading.Event(), threading.Event()

    def behave(connection: socket.socket, head: bytes) -> None:
        if b"/other" not in head:
            asked.set()
            assert go_on.wait(PATIENCE)
        connection.sendall(HELLO)

    with (
        upstream(behave) as service,
        command(service.url, tmp_path) as (port, pid),
        connected(port) as client,
    ):
        client.sendall(get("/"))
        assert asked.wait(PATIENCE)
        before = peak(pid)
        requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 9_000
        client.sendall(requests)
        for _ in range(3):  # what came before was read before
            assert ask(port, get("/other")).endswith(b"hello")
        assert peak(pid) - before < 4 * len(requests)
        go_on.set()
        client.settimeout(PATIENCE)
        for _ in range(200):
            assert b" 200 OK" in read_head(client)
            assert read_exactly(client, 5) == b"hello"


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_pipelined_requests_are_answered_in_order_however_they_are_cut(size: int) -> None:
    got: list[bytes] = []

    def behave(connection: socket.socket, head: bytes) -> None:
        length = int(dict(lines_of(head)).get("content-length", 0))
        said = head.split(b" ")[1] + read_exactly(connection, length)
        got.append(said)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))

    body = b"\r\n\r\n" * 40  # looks like the ends of heads
    requests = [
        get(f"/{n}", f"Content-Length: {len(body)}", method="POST") + body if n % 7 == 3 else get(f"/{n}")
        for n in range(100)
    ]  # fmt: skip
    wire = b"".join(requests)
    with upstream(behave) as service, gateway_to(service.url) as port, connected(port) as client:

        def send() -> None:
            for start in range(0, len(wire), size):
                client.sendall(wire[start : start + size])

        sender = threading.Thread(target=send)
        sender.start()
        for n in range(100):
            length = int(dict(lines_of(read_head(client)))["content-length"])
            assert read_exactly(client, length) == f"/{n}".encode() + (body if n % 7 == 3 else b"")
        sender.join()
    assert len(got) == 100


# Slow senders and slow readers


@pytest.mark.parametrize("framing", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
def test_a_body_that_trickles_is_a_408(framing: str) -> None:
    def behave(connection: socket.socket, _: bytes) -> None:
        to_the_end(connection)

    piece = b"1\r\nx\r\n" if "chunked" in framing else b"x"
    with (
        upstream(behave) as service,
        gateway_to(service.url, body_seconds=BRIEF, body_rate=1_000_000) as port,
        connected(port) as client,
    ):
        client.sendall(get("/", framing, method="POST"))
        over = threading.Event()

        def trickle() -> None:
            # Each piece comes well within the time that a body may rest.
            with suppress(OSError):
                while not over.wait(BRIEF / 30):
                    client.sendall(piece)

        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            assert status_of(read_head(client)) == 408
        finally:
            over.set()
            sender.join()
        assert service.gone.wait(PATIENCE)


def test_a_body_at_the_least_rate_may_take_long() -> None:
    def behave(connection: socket.socket, _: bytes) -> None:
        read_exactly(connection, 30)
        connection.sendall(HELLO)

    # A byte buys ten seconds: whatever the machine does between two of them, the client is fast enough.
    with (
        upstream(behave) as service,
        gateway_to(service.url, body_seconds=20, body_rate=0.1) as port,
        connected(port) as client,
    ):
        client.sendall(get("/", "Content-Length: 30", method="POST"))
        for _ in range(30):
            client.sendall(b"x")
        assert status_of(read_head(client)) == 200


def endless(connection: socket.socket, _: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65_536)


def test_a_client_that_never_reads_does_not_keep_the_upstream() -> None:
    with (
        upstream(endless) as service,
        gateway_to(service.url, body_seconds=BRIEF) as port,
        connected(port) as client,
    ):
        client.sendall(get("/"))
        assert service.gone.wait(PATIENCE)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def test_a_closed_connection_does_not_wait_for_a_client_that_never_reads(tmp_path: Path) -> None:
    """An answer that is all there when the connection is closed, and more than the sockets hold."""
    size = 12_000_000
    with (
        upstream(
            says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        ) as service,
        command(service.url, tmp_path, "--body-timeout", "300ms") as (port, pid),
        connected(port) as client,
    ):
        client.sendall(get("/", "Connection: close"))
        read_head(client)
        descriptors = Path(f"/proc/{pid}/fd")

        def is_cut() -> bool:
            ours = [link for link in descriptors.iterdir() if _is_socket(link)]
            return len(ours) <= idle

        with connected(port) as other:
            other.sendall(get("/", method="HEAD"))
        idle = 4
        until(is_cut)


def _is_socket(link: Path) -> bool:
    try:
        return os.readlink(link).startswith("socket:")
    except OSError:
        return False


# Connections


def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    with (
        upstream(says(HELLO)) as service,
        command(service.url, tmp_path, descriptors=256) as (port, pid),
        ExitStack() as stack,
    ):
        silent = [stack.enter_context(connected(port)) for _ in range(300)]
        for _ in range(20):
            assert ask(port, get("/")).endswith(b"hello")
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < 200
        silent[0].settimeout(PATIENCE)
        with suppress(ConnectionResetError):  # the oldest went first
            assert silent[0].recv(1) == b""
        silent[-1].sendall(get("/"))  # the youngest is still there
        assert b" 200 OK" in read_head(silent[-1])


def test_the_oldest_silent_connection_goes_and_no_other() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def behave(connection: socket.socket, head: bytes) -> None:
        if b"/slow" in head:
            asked.set()
            assert go_on.wait(PATIENCE)
        connection.sendall(HELLO)

    with (
        upstream(behave) as service,
        gateway_to(service.url, connections=3) as port,
        connected(port) as busy,
        connected(port) as first,
        connected(port) as second,
    ):
        busy.sendall(get("/slow"))
        assert asked.wait(PATIENCE)
        for client in (first, second, first):  # so that the second has been silent for longer
            client.sendall(get("/"))
            assert b" 200 OK" in read_head(client)
            assert read_exactly(client, 5) == b"hello"
        assert ask(port, get("/")).endswith(b"hello")
        with suppress(ConnectionResetError):
            assert second.recv(1) == b""
        first.sendall(get("/"))
        assert b" 200 OK" in read_head(first)
        go_on.set()
        assert b" 200 OK" in read_head(busy)


def test_when_all_are_being_answered_the_next_one_is_told() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def behave(connection: socket.socket, _: bytes) -> None:
        asked.set()
        assert go_on.wait(PATIENCE)
        connection.sendall(HELLO)

    with (
        upstream(behave) as service,
        gateway_to(service.url, connections=1) as port,
        connected(port) as busy,
    ):
        busy.sendall(get("/"))
        assert asked.wait(PATIENCE)
        with connected(port) as other:
            answer = to_the_end(other)
        assert status_of(answer) == 503
        assert b"retry-after: 1" in answer
        go_on.set()
        assert b" 200 OK" in read_head(busy)


# Interim answers


@pytest.mark.parametrize("lines", ["", "Connection: Upgrade, x"])
def test_an_upstream_that_says_only_100_is_a_502(lines: str) -> None:
    def behave(connection: socket.socket, _: bytes) -> None:
        while True:
            connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)

    with upstream(behave) as service, gateway_to(service.url) as port:
        assert status_of(ask(port, get("/"))) == 502
        assert service.gone.wait(PATIENCE)


def test_nor_may_it_take_its_time_for_them() -> None:
    over = threading.Event()

    def behave(connection: socket.socket, _: bytes) -> None:
        # Each comes well within the read timeout; together they take longer, by more than the gateway may stand still, and
        # never are too many.
        for _hint in range(14):
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            over.wait(0.4)
        connection.sendall(HELLO)

    with upstream(behave) as service, gateway_to(service.url, read_timeout=1.0) as port:
        assert status_of(ask(port, get("/"))) == 504
        over.set()


def test_a_few_of_them_are_no_error_and_count_anew_for_each_request() -> None:
    few = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 16 + HELLO
    with upstream(says(few)) as service, gateway_to(service.url) as port:
        for _ in range(3):
            assert ask(port, get("/")).endswith(b"hello")
        assert service.connections == 1


# WebSockets


def masked(opcode: int, payload: bytes, fin: bool = True) -> bytes:
    length = len(payload)
    head = bytes([opcode | (0x80 if fin else 0)])
    if length < 126:
        head += bytes([0x80 | length])
    else:
        head += bytes([0x80 | 126]) + length.to_bytes(2, "big")
    return head + b"\0\0\0\0" + payload


def websocket_upstream(connection: socket.socket, head: bytes) -> None:
    """Accepts, and then reads nothing."""
    from base64 import b64encode
    from hashlib import sha1

    key = dict(lines_of(head))["sec-websocket-key"].encode()
    accept = b64encode(sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )
    forever.wait(LONG)


forever = threading.Event()


@pytest.fixture
def socket_gateway(tmp_path: Path) -> Iterator[Any]:
    forever.clear()
    with (
        upstream(websocket_upstream) as service,
        command(service.url, tmp_path) as (port, pid),
        connected(port, LONG) as client,
    ):
        extension = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
        client.sendall(get("/", *HANDSHAKE, extension))
        head = read_head(client)
        assert status_of(head) == 101
        yield client, pid, head
        forever.set()


def test_no_compression_is_agreed_on_with_clients(socket_gateway: Any) -> None:
    client, _, head = socket_gateway
    assert "sec-websocket-extensions" not in dict(lines_of(head))
    deflated = zlib.compressobj(wbits=-15)
    nothing = deflated.compress(bytes(10_000)) + deflated.flush(zlib.Z_SYNC_FLUSH)
    client.sendall(masked(0x40 | 2, nothing[:-4]))
    answer = to_the_end(client)  # a bit that was not agreed on: it is closed
    assert answer[:1] == b"\x88"
    assert int.from_bytes(answer[2:4], "big") == 1002


def test_pongs_are_not_kept_for_a_client_that_does_not_read(socket_gateway: Any) -> None:
    client, pid, _ = socket_gateway
    before = peak(pid)
    client.sendall(masked(9, b"x" * 125) * 130_000)
    assert peak(pid) - before < 5_000_000


def test_small_messages_that_nobody_takes_stay_bytes(socket_gateway: Any) -> None:
    client, pid, _ = socket_gateway
    before = peak(pid)
    client.sendall(masked(1, b"x") * 60_000 + masked(9, b"all of it"))
    assert read_exactly(client, 11) == b"\x8a\x09all of it"
    assert peak(pid) - before < 4_000_000


def test_fragments_are_not_kept_one_by_one(socket_gateway: Any) -> None:
    client, pid, _ = socket_gateway
    before = peak(pid)
    client.sendall(masked(2, b"xx", fin=False) + masked(0, b"xx", fin=False) * 100_000)
    client.sendall(masked(9, b"all of it"))
    assert read_exactly(client, 11) == b"\x8a\x09all of it"
    assert peak(pid) - before < 4_000_000


def test_a_message_in_fragments_arrives_whole() -> None:
    with (
        listening(sample) as behind,
        gateway_to(f"http://127.0.0.1:{behind}") as port,
        connected(port) as client,
    ):
        client.sendall(get("/", *HANDSHAKE))
        assert status_of(read_head(client)) == 101
        client.sendall(masked(1, b"a", fin=False) + masked(0, b"b", fin=False) + masked(0, b"c"))
        assert read_exactly(client, 5) == b"\x81\x03abc"
        many = b"".join(masked(2, b"%05d" % n) for n in range(3_000))
        sender = threading.Thread(target=client.sendall, args=(many,))
        sender.start()
        for n in range(3_000):
            assert read_exactly(client, 7) == b"\x82\x05%05d" % n
        sender.join()


def test_the_last_of_the_pings_that_came_meanwhile_is_answered(socket_gateway: Any) -> None:
    client, _, _ = socket_gateway
    pings = b"".join(masked(9, b"%0125d" % n) for n in range(130_000))
    sender = threading.Thread(target=client.sendall, args=(pings,))
    sender.start()
    sender.join()
    last = b"%0125d" % 129_999
    found = b""
    while last not in found:
        more = client.recv(65_536)
        assert more, "it hung up"
        found = found[-200:] + more
