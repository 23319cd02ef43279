"""Clients and upstreams that mean harm, and an ordinary client beside them; each runs in a process of its own.

python -m benchmarks.attackers service                   says its port; does what the path asks for
python -m benchmarks.attackers ordinary PORT SECONDS     says its 99th percentile in ms
python -m benchmarks.attackers pings PORT SECONDS        says bytes sent and seconds open, all connections together
"""

from __future__ import annotations

import asyncio
import socket
import sys
import zlib
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha1
from time import perf_counter, sleep
from typing import NamedTuple

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
HANDSHAKE = (
    b"GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
BYTES_PER_SECOND = 4_000_000
"""No attacker sends more: what is measured is what its bytes cost, not who has the faster processor."""


class Spent(NamedTuple):
    sent: int
    """Bytes."""
    open_seconds: float
    """Of all connections together."""


# The service


class Service:
    def __init__(self) -> None:
        self.sent = 0
        """Bytes of answers that never end."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1]
                if path == b"/slow":
                    await asyncio.sleep(30)
                elif path == b"/upload":
                    await reader.read()
                elif path == b"/large":
                    await self._pour(
                        writer, b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n"
                    )
                elif path == b"/interim":
                    await self._pour(writer, b"HTTP/1.1 102 Processing\r\n\r\n" * 2_000)
                elif path == b"/socket":
                    await self._accept_and_sleep(writer, head)
                writer.write(HELLO if path != b"/sent" else _answer(str(self.sent).encode()))
                await writer.drain()
        writer.close()

    async def _pour(self, writer: asyncio.StreamWriter, first: bytes) -> None:
        piece = first
        while True:
            writer.write(piece)
            await writer.drain()
            self.sent += len(piece)
            piece = piece if first.endswith(b"Processing\r\n\r\n") else bytes(65_536)

    async def _accept_and_sleep(self, writer: asyncio.StreamWriter, head: bytes) -> None:
        key = head.lower().partition(b"sec-websocket-key:")[0]
        key = head[len(key) :].split(b"\r\n", 1)[0].partition(b":")[2].strip()
        accept = b64encode(sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        await asyncio.sleep(3_600)


def _answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def _service() -> None:
    server = await asyncio.start_server(Service().serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# An ordinary client


def ordinary(port: int, seconds: float) -> float:
    """The 99th percentile in ms of one request after another, with a new connection for every tenth."""
    took: list[float] = []
    end = perf_counter() + seconds
    client = _connected(port)
    while perf_counter() < end:
        if len(took) % 10 == 0:
            client.close()
            client = _connected(port)
        began = perf_counter()
        while not _is_answered(client):
            # It was idle, and closed meanwhile: any client sends the request again, on a new connection.
            client.close()
            client = _connected(port)
        took.append((perf_counter() - began) * 1e3)
        sleep(0.002)
    client.close()
    return sorted(took)[int(len(took) * 0.99)]


def _is_answered(client: socket.socket) -> bool:
    found = b""
    try:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while not found.endswith(b"hello"):
            more = client.recv(4_096)
            if not more:
                return False
            found += more
    except ConnectionError:
        return False
    return True


# Attacks


def deflate(port: int, seconds: float) -> Spent:
    """Messages of zeros, deflated a thousandfold, if the gateway agrees to that."""
    squeeze = zlib.compressobj(wbits=-15)
    megabyte = squeeze.compress(bytes(1_000_000)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    small = megabyte * 60  # each stands by itself
    return _at_sockets(port, seconds, _frame(0x42, small[:-4]))


def pings(port: int, seconds: float) -> Spent:
    return _at_sockets(port, seconds, _frame(9, bytes(125)) * 100)


def messages(port: int, seconds: float) -> Spent:
    """Small ones, which the upstream does not take."""
    return _at_sockets(port, seconds, _frame(1, b"x") * 2_000)


def pipelining(port: int, seconds: float) -> Spent:
    return _flood(port, seconds, b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n" * 500, connections=20)


def senders(port: int, seconds: float) -> Spent:
    """Bodies at two bytes per second."""
    return _flood(
        port,
        seconds,
        b"x",
        b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n",
        100,
        pause=0.5,
    )


def readers(port: int, seconds: float) -> Spent:
    """Answers that never end, and are not read."""
    return _flood(port, seconds, b"", b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n", 20)


def silent(port: int, seconds: float) -> Spent:
    """More connections than there are descriptors; those that are cut come again."""
    return _flood(port, seconds, b"", b"", 300)


def interim(port: int, seconds: float) -> Spent:
    """Asking an upstream that says 102 for ever."""
    return _flood(port, seconds, b"", b"GET /interim HTTP/1.1\r\nHost: a\r\n\r\n", 4)


ATTACKS: dict[str, Callable[[int, float], Spent]] = {
    attack.__name__: attack
    for attack in (deflate, pings, messages, pipelining, senders, readers, silent, interim)
}


def _at_sockets(port: int, seconds: float, message: bytes) -> Spent:
    return _flood(port, seconds, message, HANDSHAKE, 10, answered=True)


def _flood(
    port: int,
    seconds: float,
    piece: bytes,
    first: bytes = b"",
    connections: int = 10,
    *,
    answered: bool = False,
    pause: float = 0.01,
) -> Spent:
    """Each connection sends `first`, then pieces, without reading more than it must."""
    open_since: dict[socket.socket, float] = {}
    open_seconds, sent = 0.0, 0
    began = perf_counter()
    for _ in range(connections):
        client = _connected(port)
        client.sendall(first)
        if answered:
            client.recv(4_096)
        client.setblocking(False)
        sent += len(first)
        open_since[client] = perf_counter()
    while perf_counter() < began + seconds:
        for client in list(open_since):
            lost = _is_cut(client)
            if piece and not lost and sent < (perf_counter() - began + 0.5) * BYTES_PER_SECOND:
                try:
                    sent += client.send(piece)
                except BlockingIOError:
                    pass
                except OSError:
                    lost = True
            if lost:
                open_seconds += perf_counter() - open_since.pop(client)
                client.close()
        sleep(pause)
    for client, since in open_since.items():
        open_seconds += perf_counter() - since
        client.close()
    return Spent(sent, open_seconds)


def _is_cut(client: socket.socket) -> bool:
    """As told by the socket, without reading what is there."""
    import select

    poll = select.poll()
    poll.register(client, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def _frame(opcode: int, payload: bytes) -> bytes:
    length = len(payload)
    size = bytes([0x80 | length]) if length < 126 else b"\xfe" + length.to_bytes(2, "big")
    return bytes([0x80 | opcode]) + size + b"\0\0\0\0" + payload


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 30)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "service":
        asyncio.run(_service())
    elif what == "ordinary":
        print(ordinary(int(arguments[0]), float(arguments[1])))
    else:
        print(*ATTACKS[what](int(arguments[0]), float(arguments[1])))
