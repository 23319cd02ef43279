"""A process that gets too little of the processor takes a server that is well for well: by the budget that everybody has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.servers.cluster import Cluster
from tests.servers.server import Server
from tests.shake.load import busy_loops
from tests.stores.redis.late_client import BUSY

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[3]
SECONDS = 3
RUNS, STOPPED = 0.100, 0.080
"""Of every 180 ms the process is stopped for 80."""
COMPANY = ("busy threads", "busy processes", "stopped again and again")


CASES = [
    ("threads", "one server"),
    ("tasks", "one server"),
    ("peek", "one server"),
    ("refund", "one server"),
    ("threads", "a cluster"),
    ("tasks", "a cluster"),
]

AT_ONCE = 2
"""More would starve each other, and the server: it is the company that is to leave them little."""

Told = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module", params=COMPANY)
def told(request: pytest.FixtureRequest, redis7: Server, cluster: Cluster) -> Told:
    """What each way of asking came to, several at the same time."""
    urls = {"one server": redis7.url, "a cluster": cluster.url}
    company: str = request.param
    found: Told = {}
    for first in range(0, len(CASES), AT_ONCE):
        with ExitStack() as stack:
            clients = {
                (way, where): stack.enter_context(late_client(urls[where], way, company))
                for way, where in CASES[first : first + AT_ONCE]
            }
            for client in clients.values():
                assert _line(client) == "ready\n"
            if company == "busy processes":
                stack.enter_context(busy_loops(BUSY))
            for client in clients.values():
                _begin(client)
            if company == "stopped again and again":
                stop_again_and_again(list(clients.values()))
            found |= {case: json.loads(_line(client)) for case, client in clients.items()}
    return found


@pytest.mark.parametrize(("way", "where"), CASES)
def test_a_server_that_is_well_is_never_called_lost(way: str, where: str, told: Told) -> None:
    asked = told[way, where]
    assert asked["lost"] == 0, asked
    assert asked["degraded"] <= asked["asked"] / 100, asked
    assert asked["asked"] >= 5, asked


@contextmanager
def late_client(url: str, way: str, company: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.stores.redis.late_client", url, way, company]
    with subprocess.Popen(
        [*command, str(SECONDS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def stop_again_and_again(processes: list[subprocess.Popen[str]]) -> None:
    """Until all have ended; nothing is measured here, so it matters little when this process is late itself."""
    pause = Event()
    while any(running := [process for process in processes if process.poll() is None]):
        pause.wait(RUNS)
        for process in running:
            process.send_signal(signal.SIGSTOP)
        pause.wait(STOPPED)
        for process in running:
            process.send_signal(signal.SIGCONT)


def _begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("begin\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
