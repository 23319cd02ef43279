"""Through real servers, over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from socket import create_connection
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.web.conftest import Start

SERVED = "tests.web.served"
ASGI_SERVERS = {
    "uvicorn": ["-m", "uvicorn", f"{SERVED}:asgi", "--port={port}", "--no-proxy-headers"],
    "granian": ["-m", "granian", "--interface=asgi", f"{SERVED}:asgi", "--port={port}"],
    "hypercorn": ["-m", "hypercorn", f"{SERVED}:asgi", "--bind=127.0.0.1:{port}"],
}
WSGI_SERVERS = {
    "gunicorn": ["-m", "gunicorn", f"{SERVED}:wsgi", "--bind=127.0.0.1:{port}"],
    "waitress": [
        "-m",
        "waitress",
        "--listen=127.0.0.1:{port}",
        "--no-clear-untrusted-proxy-headers",
        f"{SERVED}:wsgi",
    ],
}
TELLS_IN_HANDSHAKE = ("uvicorn", "hypercorn")
"""Granian sends no headers of the app's when it accepts."""


@pytest.fixture(scope="module", params=ASGI_SERVERS)
def asgi_server(request: pytest.FixtureRequest, start: Start) -> tuple[str, int]:
    return request.param, start(*ASGI_SERVERS[request.param])


@pytest.fixture(scope="module", params=WSGI_SERVERS)
def wsgi_server(request: pytest.FixtureRequest, start: Start) -> tuple[str, int]:
    return request.param, start(*WSGI_SERVERS[request.param])


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def check_limited(port: int) -> None:
    for left in (1, 0):
        status, headers, body = get(port, "/twice")
        assert (status, body) == (200, b"hello")
        told = re.search(rf'"twice";r={left};t=(\d+)', headers["RateLimit"])
        assert told
        assert 3500 < int(told[1]) <= 3600
        assert '"twice";q=2;w=3600' in headers["RateLimit-Policy"]
    status, headers, body = get(port, "//twice/")
    assert status == 503
    assert headers["Cache-Control"] == "no-store"
    assert 3500 < int(headers["Retry-After"]) <= 3600
    assert json.loads(body)["violated-policies"] == ["twice"]
    status, headers, body = get(port, "/twice", "HEAD")
    assert (status, body) == (503, b"")
    assert get(port, "/elsewhere")[0] == 200


def check_addresses(port: int) -> None:
    """The loopback address is a trusted proxy here: what it says counts, in the one header that is for it."""
    told = [get(port, "/twice", **{"X-Forwarded-For": f"1.1.1.{n}"})[0] for n in range(4)]
    assert told == [200] * 4
    spoofed = [get(port, "/twice", X_Forwarded_For=f"2.2.2.{n}")[0] for n in range(4)]
    assert spoofed == [503] * 4  # they all count as the proxy's own, which has used up its two


def test_an_asgi_server(asgi_server: tuple[str, int]) -> None:
    check_limited(asgi_server[1])
    check_addresses(asgi_server[1])


def test_a_wsgi_server(wsgi_server: tuple[str, int]) -> None:
    check_limited(wsgi_server[1])
    check_addresses(wsgi_server[1])


def test_a_websocket_echo_works_and_is_limited(asgi_server: tuple[str, int]) -> None:
    name, port = asgi_server
    url = f"ws://127.0.0.1:{port}/socket"
    for left in (1, 0):
        with connect(url) as socket:
            assert socket.response is not None
            if name in TELLS_IN_HANDSHAKE:
                assert f'"socket";r={left};' in socket.response.headers["RateLimit"]
            for word in ("one", "two", "three"):
                socket.send(word)
                assert socket.recv(10) == word
    with pytest.raises(InvalidStatus) as refused:
        connect(url)
    response = refused.value.response
    assert response.status_code == 503
    assert 3500 < int(response.headers["Retry-After"]) <= 3600


def test_a_stream_arrives_chunk_by_chunk_both_ways(asgi_server: tuple[str, int]) -> None:
    """The next chunk is sent only after the former came back, so nothing on the way can have waited for more."""

    async def main() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", asgi_server[1])
        writer.write(b"POST /duplex HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(1_000):
            chunk = b"%04d" % number
            writer.write(b"4\r\n%s\r\n" % chunk)
            if number == 0:
                assert b"ratelimit" in (await reader.readuntil(b"\r\n\r\n")).lower()
            assert await reader.readexactly(9) == b"4\r\n%s\r\n" % chunk
        writer.write(b"0\r\n\r\n")
        assert await reader.readexactly(5) == b"0\r\n\r\n"
        writer.close()
        await writer.wait_closed()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_who_leaves_the_queue_gives_the_place_back(asgi_server: tuple[str, int]) -> None:
    """One a day, and one place to wait in: the second client waits until tomorrow, or leaves."""
    port = asgi_server[1]
    assert get(port, "/queue")[0] == 200
    first = Waiting(port)
    first.until_it_is_held()
    assert get(port, "/queue")[0] == 503
    first.leave()
    for _ in range(1_000):
        second = Waiting(port)
        if second.until_it_is_held():
            break
        second.leave()
    else:
        raise AssertionError("the place was not given back")
    assert get(port, "/queue")[0] == 503
    second.leave()


class Waiting:
    """A request on its way."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._held_before = self._held()
        self._socket = create_connection(("127.0.0.1", port), 30)
        self._socket.sendall(b"GET /queue HTTP/1.1\r\nHost: x\r\n\r\n")
        self._socket.setblocking(False)

    def until_it_is_held(self) -> bool:
        """False if it is answered, which is to say refused."""
        for _ in range(10_000):
            if self._held() > self._held_before:
                return True
            with suppress(BlockingIOError):
                assert b" 503 " in self._socket.recv(4_096)
                return False
        raise AssertionError("neither held nor refused")

    def leave(self) -> None:
        self._socket.close()

    def _held(self) -> int:
        return int(get(self._port, "/held")[2])


@pytest.fixture
def many_files() -> Iterator[None]:
    """A thousand sockets need more than many shells allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4_096, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_of_a_thousand_at_once_exactly_a_hundred_pass(start: Start) -> None:
    port = start(*ASGI_SERVERS["uvicorn"], "--backlog=2048")

    async def ask(together: asyncio.Barrier) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await together.wait()
        writer.write(b"GET /hundred HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        status = int((await reader.readline()).split()[1])
        writer.close()
        return status

    async def main() -> Counter[int]:
        together = asyncio.Barrier(1_000)
        return Counter(await asyncio.gather(*(ask(together) for _ in range(1_000))))

    assert asyncio.run(asyncio.wait_for(main(), 60)) == {200: 100, 503: 900}


def test_over_http_2(start: Start) -> None:
    port = start(*ASGI_SERVERS["hypercorn"])
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(http1=False, http2=True, base_url=url, timeout=30) as client:
        answers = [client.get("/twice") for _ in range(3)]
    assert {answer.http_version for answer in answers} == {"HTTP/2"}
    assert [answer.status_code for answer in answers] == [200, 200, 503]
    assert '"twice";r=1;' in answers[0].headers["RateLimit"]
