"""Several workers of a web server and one zone: the limit holds for all of them together, whatever happens to single ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.servers.ports import free_ports
from tests.servers.waiting import until
from tests.stores.shared.zones import zone_name

ROOT = Path(__file__).parents[2]
LIMIT = 1_000
RULES = """
local_store: shared://{zone}?size=4m
limits: [{{url: /, except: [/pid], rules: [{{name: all of us, unit: 8760h, rpu: {limit}}}]}}]
"""
"""A bucket that does not leak while the test runs."""
APP = """
import os
from diana.asgi import RateLimitMiddleware as Asgi
from diana.wsgi import RateLimitMiddleware as Wsgi


def pid(environ, start_response):
    start_response("200 OK", [])
    return [b"%d" % os.getpid()]


async def apid(scope, receive, send):
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % os.getpid()})


wsgi, asgi = Wsgi(pid, rules="diana.yaml"), Asgi(apid, rules="diana.yaml")
"""
GUNICORN = [
    "gunicorn",
    "served:wsgi",
    "--bind=127.0.0.1:{port}",
    "--workers=4",
    "--no-control-socket",
]
UVICORN = [
    "uvicorn",
    "served:asgi",
    "--port={port}",
    "--workers=4",
    "--no-access-log",
    # By itself it kills a worker that has not answered within five seconds, as one that starts on a busy machine.
    "--timeout-worker-healthcheck=60",
]
GRANIAN = ["granian", "served:asgi", "--interface=asgi", "--port={port}", "--workers=4", "--no-access-log"]  # fmt: skip
SECONDS = 60.0
KINDS = {"python": "0", "native": "1"}


class Served:
    def __init__(self, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.port = port
        self.process = process
        self.log = log

    def ask(self, path: str = "/") -> tuple[int, str]:
        """The status and the body; 0 if the connection broke."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, HTTPException):
            return 0, ""
        finally:
            connection.close()

    def ask_often(self, number: int) -> Counter[int]:
        with ThreadPoolExecutor(16) as pool:
            return Counter(status for status, _ in pool.map(lambda _: self.ask(), range(number)))

    def pids(self, number: int, others: frozenset[str] = frozenset()) -> frozenset[str]:
        """Those of so many workers, asked until all of them have answered."""
        seen: set[str] = set()

        def all_answer() -> bool:
            with ThreadPoolExecutor(16) as pool:
                answers = list(pool.map(lambda _: self.ask("/pid"), range(32)))
            seen.update(body for status, body in answers if status == 200 and body not in others)
            return len(seen) >= number

        until(all_answer, f"{number} workers answer", within=120)
        return frozenset(seen)


@contextmanager
def serving(folder: Path, zone: str, command: list[str], kind: str) -> Iterator[Served]:
    (folder / "served.py").write_text(APP)
    (folder / "diana.yaml").write_text(RULES.format(zone=zone, limit=LIMIT))
    log, port = folder / "server.log", next(iter(free_ports()))
    paths = os.pathsep.join([str(ROOT / "src"), str(folder)])
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *(part.format(port=port) for part in command)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths, "DIANA_NATIVE": KINDS[kind]},
            stdout=output,
            stderr=output,
        )
    try:
        yield Served(port, process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def zone() -> Iterator[str]:
    with zone_name() as name:
        yield name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "command",
    [GUNICORN, [*GUNICORN, "--preload"], UVICORN, GRANIAN],
    ids=["gunicorn", "gunicorn --preload", "uvicorn", "granian"],
)
def test_four_workers_admit_exactly_the_limit(
    tmp_path: Path, zone: str, command: list[str], kind: str
) -> None:
    with serving(tmp_path, zone, command, kind) as served:
        served.pids(4)
        found = served.ask_often(LIMIT + 500)
    assert found == {200: LIMIT, 503: 500}, served.log.read_text()


def test_a_rolling_reload_keeps_the_count(tmp_path: Path, zone: str) -> None:
    with serving(tmp_path, zone, GUNICORN, "python") as served:
        old = served.pids(4)
        assert served.ask_often(400) == {200: 400}
        served.process.send_signal(signal.SIGHUP)
        served.pids(4, others=old)
        found = served.ask_often(LIMIT)
    assert found == {200: LIMIT - 400, 503: 400}, served.log.read_text()


def test_a_restart_keeps_the_count(tmp_path: Path, zone: str) -> None:
    with serving(tmp_path, zone, GUNICORN, "python") as served:
        served.pids(4)
        assert served.ask_often(400) == {200: 400}
    with serving(tmp_path, zone, GUNICORN, "python") as served:
        served.pids(4)
        found = served.ask_often(LIMIT)
    assert found == {200: LIMIT - 400, 503: 400}, served.log.read_text()


def test_workers_killed_under_load_are_replaced_and_nothing_is_counted_twice(
    tmp_path: Path, zone: str
) -> None:
    with serving(tmp_path, zone, GUNICORN, "python") as served:
        killed = served.pids(4)
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(served.ask_often, 2 * LIMIT)
            for pid in killed:
                os.kill(int(pid), signal.SIGKILL)
            found = load.result()
        served.pids(4, others=killed)
        after = served.ask_often(50)
    # What a killed worker had charged but not answered is lost to the client.
    assert LIMIT - found[0] <= found[200] <= LIMIT
    assert after == {503: 50}
