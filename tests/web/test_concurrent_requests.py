"""Real servers under load: never more inside the app than `most` says, by the app's own count; as nginx's limit_conn does it."""

from __future__ import annotations

import json
import re
import subprocess
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from tests.servers.nginx import NginxAtOnce
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.web.conftest import Start

APP = "tests.web.concurrent_requests"
UVICORN = ["-m", "uvicorn", f"{APP}:book_asgi", "--port={port}", "--log-level=warning"]
GUNICORN = ["-m", "gunicorn", f"{APP}:book_wsgi", "--bind=127.0.0.1:{port}", "--threads=8"]
SERVERS = {
    "uvicorn": (UVICORN, "local"),
    # By itself it kills a worker that has not answered within five seconds, as one that starts on a busy machine.
    "uvicorn, 4 workers, redis": (
        [*UVICORN, "--workers=4", "--timeout-worker-healthcheck=60"],
        "global",
    ),
    "gunicorn, 8 threads": (GUNICORN, "local"),
    "gunicorn, 4 workers, redis": ([*GUNICORN, "--workers=4"], "global"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_never_more_inside_than_most(
    name: str, start: Start, redis7: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, scope = SERVERS[name]
    book = tmp_path / "book"
    redis7.ask("FLUSHALL")
    monkeypatch.setenv("INSIDE_BOOK", str(book))
    monkeypatch.setenv("INSIDE_RULES", f"{{url: /, rules: [{{algo: C, most: 5, scope: {scope}}}]}}")
    monkeypatch.setenv("INSIDE_STORE", f"{redis7.url}?budget=10s" if scope == "global" else "")
    port = start(*command)
    until(lambda: answers(port), "it answers")  # a master may listen before it has workers
    denied = False

    def was_crowded() -> bool:
        """Three seconds of load may be seconds in which everything stood still: then more of it."""
        nonlocal denied
        said = subprocess.run(
            ["wrk", "-t2", "-c64", "-d3s", f"http://127.0.0.1:{port}/"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        denied |= re.search(r"Non-2xx or 3xx responses: (\d+)", said) is not None
        signs = book.read_bytes()
        return denied and signs.count(b"+") > 20 and b"++" in signs

    until(was_crowded, "the load is a load: more than 20 entered, and wrk was denied")

    def is_empty() -> bool:
        signs = book.read_bytes()
        return signs.count(b"+") == signs.count(b"-")

    until(is_empty, "all have left")
    now = most = 0
    for sign in book.read_bytes().decode():
        now += 1 if sign == "+" else -1
        most = max(most, now)
    assert 1 < most <= 5, f"{most} were inside at once"


def answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    finally:
        connection.close()


class Client:
    """Requests that are kept, one thread each, and what they were answered."""

    def __init__(self, port: int, upstream: int) -> None:
        self._port = port
        self._upstream = upstream
        self._threads: dict[str, Thread] = {}
        self.statuses: dict[str, int] = {}

    def begin(self, number: str) -> None:
        """Returns once it is inside, or denied."""

        def ask() -> None:
            self.statuses[number] = self._get(self._port, f"/hold/{number}")[0]

        thread = self._threads[number] = Thread(target=ask)
        thread.start()
        until(lambda: number in self.statuses or number in self.inside(), "it is in or denied")

    def end(self, number: str) -> None:
        self._get(self._upstream, f"/go/{number}")
        self._threads[number].join()

    def inside(self) -> list[str]:
        found: list[str] = json.loads(self._get(self._upstream, "/inside")[1])
        return found

    def _get(self, port: int, path: str) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def test_as_nginx_does_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same comings and goings, drawn at random: who is denied by limit_conn is denied by `most`, and nobody else."""
    monkeypatch.setenv("INSIDE_RULES", "{url: /, rules: [{actor: ip, algo: C, most: 3}]}")
    plain = start("-m", "uvicorn", f"{APP}:gate", "--port={port}", "--log-level=warning")
    limited = start("-m", "uvicorn", f"{APP}:unlimited", "--port={port}", "--log-level=warning")
    with NginxAtOnce(plain, 3) as nginx:
        clients = [Client(nginx.port, plain), Client(limited, limited)]
        random = Random(17)
        for number in range(60):
            there = clients[0].inside()
            assert there == clients[1].inside()
            leaves = there and random.random() < 0.4
            chosen = random.choice(there) if leaves else str(number)
            for client in clients:
                client.end(chosen) if leaves else client.begin(chosen)
        for client in clients:
            for kept in client.inside():
                client.end(kept)
    assert clients[0].statuses == clients[1].statuses
    assert sorted(set(clients[0].statuses.values())) == [200, 503]
