"""Web servers asked by wrk, in turns.

Each server is a process of its own on a free loopback port. All of them stand idle but the one that is asked, and a round is a short
turn of each, in drawn order: what the machine does besides hits all of them alike. Needs wrk: `.ci/install bench`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryFile
from typing import NamedTuple

CONNECTIONS = 32
TARGET = "/api/things?page=1"
REQUESTS = re.compile(r"(\d+) requests in")
RATE = re.compile(r"Requests/sec:\s+([0-9.]+)")


class NotStarted(Exception):
    """A server died before it listened; the message is the last thing it said."""


class Served(NamedTuple):
    """A server that listens."""

    port: int
    pid: int


class Turn(NamedTuple):
    """What one turn showed."""

    rate: float
    """Requests per second."""
    cpu_us: float
    """The server's own processor time per request, all of its threads."""


Turns = dict[str, list[Turn]]


def need_wrk(race: str) -> None:
    if shutil.which("wrk") is None:
        raise SystemExit(f"the race `{race}` needs wrk; run .ci/install bench")


@contextmanager
def started(module: str, *arguments: str) -> Iterator[Served]:
    """`python -m module arguments…`, which says its port in one line; stopped by its own pid."""
    command = [sys.executable, "-m", module, *arguments]
    with (
        TemporaryFile("w+") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            if not said:
                process.wait()
                complaints.seek(0)
                raise NotStarted(complaints.read().strip().rpartition("\n")[2])
            yield Served(int(said), process.pid)
        finally:
            process.kill()


def in_turns(servers: Mapping[str, Served], rounds: int, seconds: int, *, seed: int = 1) -> Turns:
    """Everybody warms up, then come the rounds."""
    turns: Turns = {name: [] for name in servers}
    draw = Random(seed)
    for served in servers.values():
        _turn(served, 1)
    for _ in range(rounds):
        for name in draw.sample(list(servers), len(servers)):
            turns[name].append(_turn(servers[name], seconds))
    return turns


def median_rate(turns: list[Turn]) -> float:
    return median(turn.rate for turn in turns)


def median_cpu_us(turns: list[Turn]) -> float:
    return median(turn.cpu_us for turn in turns)


def percent_below(turns: list[Turn], bare: list[Turn]) -> float:
    """How much fewer requests per second than the bare one, compared round by round."""
    ratios = (mine.rate / theirs.rate for mine, theirs in zip(turns, bare, strict=True))
    return (1 - median(ratios)) * 100


def _turn(served: Served, seconds: int) -> Turn:
    """A request that did not pass is an error of the race."""
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-H", "X-Account-Id: alice"]
    before = _cpu_seconds(served.pid)
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{served.port}{TARGET}"],
        capture_output=True,
        text=True,
        check=True,
    )
    spent = _cpu_seconds(served.pid) - before
    requests, rate = REQUESTS.search(done.stdout), RATE.search(done.stdout)
    if requests is None or rate is None or "Non-2xx" in done.stdout:
        raise AssertionError(f"not every request passed:\n{done.stdout}")
    return Turn(float(rate[1]), spent * 1e6 / max(1, int(requests[1])))


def _cpu_seconds(pid: int) -> float:
    # Behind the name, which may hold anything but is in parentheses, these are the 12th and 13th.
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
