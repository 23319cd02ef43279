"""Several workers, one warning, with what to write; one worker, or a store for all of them: none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.servers.ports import free_ports
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.shared.zones import zone_name

ROOT = Path(__file__).parents[2]
WARNING = (
    "several worker processes serve these rules, and each counts by itself: rule 'hourly' lets 2 pass in every one of them; "
    "to count together on this machine, write local_store: shared://NAME, such as local_store: shared://api; "
    "for several machines, scope: global and a store"
)
LOCAL = "limits: [{url: /, rules: [{name: hourly, unit: hour, rpu: 2}]}]"
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


if "wsgi" in os.environ["KIND"]:
    app = Wsgi(pid, rules="diana.yaml", denied=lambda request, verdict: pid)
else:
    app = Asgi(apid, rules="diana.yaml", denied=lambda request, verdict: apid)
"""
GUNICORN = ["gunicorn", "served:app", "--bind=127.0.0.1:{port}"]
# By itself it kills a worker that has not answered within five seconds, as one that starts on a busy machine; another would warn too.
UVICORN = ["uvicorn", "served:app", "--port={port}", "--timeout-worker-healthcheck=60"]

HYPERCORN = ["hypercorn", "served:app", "--bind=127.0.0.1:{port}"]
GRANIAN = ["granian", "served:app", "--interface=asgi", "--port={port}"]


@contextmanager
def serving(folder: Path, kind: str, rules: str, command: list[str]) -> Iterator[tuple[int, Path]]:
    """The port, and what it logs."""
    (folder / "served.py").write_text(APP)
    (folder / "diana.yaml").write_text(rules)
    log = folder / "server.log"
    port = next(iter(free_ports()))
    paths = os.pathsep.join([str(ROOT / "src"), str(folder)])
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", *(part.format(port=port) for part in command)],
            cwd=folder,
            # gunicorn keeps a socket at home, which others would share.
            env={**os.environ, "PYTHONPATH": paths, "KIND": kind, "HOME": str(folder)},
            stdout=output,
            stderr=output,
        )
    try:
        yield port, log
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def pid_of_answer(port: int) -> int | None:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/", headers={"Connection": "close"})
        return int(connection.getresponse().read())
    except OSError:
        return None
    finally:
        connection.close()


def workers_that_answered(port: int, number: int) -> None:
    """Wait until so many have: then all of them have made their middleware."""
    seen: set[int] = set()

    def all_did() -> bool:
        pid = pid_of_answer(port)
        seen.update([pid] if pid else [])
        return len(seen) >= number

    until(all_did, f"{number} workers answer", within=120)


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("wsgi", [*GUNICORN, "--workers=3"]),
        ("wsgi", [*GUNICORN, "--workers=3", "--preload"]),
        ("asgi", [*UVICORN, "--workers=3"]),
        ("asgi", [*HYPERCORN, "--workers=3"]),
        ("asgi", [*GRANIAN, "--workers=3"]),
    ],
    ids=["gunicorn", "gunicorn --preload", "uvicorn", "hypercorn", "granian"],
)
def test_one_of_several_workers_warns(tmp_path: Path, kind: str, command: list[str]) -> None:
    with serving(tmp_path, kind, LOCAL, command) as (port, log):
        workers_that_answered(port, 3)
        until(lambda: WARNING in log.read_text(), "a worker warns", 120)
    assert log.read_text().count("several worker processes") == 1, log.read_text()


@pytest.mark.parametrize(
    ("kind", "command"), [("wsgi", GUNICORN), ("asgi", UVICORN)], ids=["gunicorn", "uvicorn"]
)
def test_servers_that_one_process_has_started_do_not(
    tmp_path: Path, kind: str, command: list[str]
) -> None:
    """Two servers with the same rules, each at an address of its own, are not workers of one server."""
    folders = [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as stack:
        logs = []
        for folder in folders:
            folder.mkdir()
            port, log = stack.enter_context(serving(folder, kind, LOCAL, command))
            workers_that_answered(port, 1)
            logs.append(log)
    for log in logs:
        assert "several worker processes" not in log.read_text(), log.read_text()


def test_one_worker_does_not(tmp_path: Path) -> None:
    with serving(tmp_path, "wsgi", LOCAL, GUNICORN) as (port, log):
        workers_that_answered(port, 1)
    assert "several worker processes" not in log.read_text()


def test_workers_that_count_in_a_zone_do_not(tmp_path: Path) -> None:
    with zone_name() as zone:
        rules = f"local_store: shared://{zone}?size=4m\n{LOCAL}"
        with serving(tmp_path, "wsgi", rules, [*GUNICORN, "--workers=3"]) as (port, log):
            workers_that_answered(port, 3)
    assert "several worker processes" not in log.read_text(), log.read_text()


def test_workers_that_count_together_do_not(tmp_path: Path, redis7: Server) -> None:
    rules = f"store: {redis7.url}\n{LOCAL}".replace("rpu: 2", "rpu: 2, scope: global")
    with serving(tmp_path, "wsgi", rules, [*GUNICORN, "--workers=3"]) as (port, log):
        workers_that_answered(port, 3)
    assert "several worker processes" not in log.read_text(), log.read_text()
