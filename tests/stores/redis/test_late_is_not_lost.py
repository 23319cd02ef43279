"""A process that gets too little of the processor takes a server that is well for well: by the budget that everybody has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.servers.cluster import Cluster
from tests.servers.server import Server

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[3]
SECONDS = 3
RUNS, STOPPED = 0.100, 0.080
"""Of every 180 ms the process is stopped for 80."""
COMPANY = ("busy threads", "busy processes", "stopped again and again")


@pytest.fixture(scope="module")
def urls(redis7: Server, cluster: Cluster) -> dict[str, str]:
    return {"one server": redis7.url, "a cluster": cluster.url}


@pytest.mark.parametrize("company", COMPANY)
@pytest.mark.parametrize(
    ("way", "where"),
    [
        ("threads", "one server"),
        ("tasks", "one server"),
        ("peek", "one server"),
        ("refund", "one server"),
        ("threads", "a cluster"),
        ("tasks", "a cluster"),
    ],
)
def test_a_server_that_is_well_is_never_called_lost(
    way: str, where: str, company: str, urls: dict[str, str]
) -> None:
    told = late(urls[where], way, company)
    assert told["lost"] == 0, told
    assert told["degraded"] <= told["asked"] / 100, told
    assert told["asked"] >= 5, told


def late(url: str, way: str, company: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.stores.redis.late_client", url, way, company]
    with subprocess.Popen(
        [*command, str(SECONDS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            if company == "stopped again and again":
                told = stopping(process)
            else:
                told = process.stdout.readline()
        except BaseException:
            process.kill()
            raise
    answer: dict[str, Any] = json.loads(told)
    return answer


def stopping(process: subprocess.Popen[str]) -> str:
    """Stop and continue it until it has told; nothing is measured here, so it matters little when this process is late itself."""
    told: list[str] = []
    assert process.stdout is not None
    reading = Thread(target=lambda: told.append(process.stdout.readline()))  # type: ignore[union-attr]
    reading.start()
    pause = Event()
    while reading.is_alive():
        pause.wait(RUNS)
        os.kill(process.pid, signal.SIGSTOP)
        pause.wait(STOPPED)
        os.kill(process.pid, signal.SIGCONT)
    reading.join()
    return told[0]
