"""`make shake` finds a test that cannot bear to stand still, names it, and leaves no process behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.shake.pauses import Pauses
from tests.shake.processes import identity_of, state_of

ROOT = Path(__file__).parents[2]
TESTS = """
import subprocess, sys, time
from pathlib import Path
from tests.shake.processes import identity_of

def test_fragile():
    last = time.monotonic()
    while (now := time.monotonic()) - last < 0.04:
        last = now
        time.sleep(0.001)
    raise AssertionError("stood still")

def test_sturdy():
    left_behind = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with Path(__file__).with_name("pids").open("a") as file:
        file.write(f"{identity_of(left_behind.pid)}\\n")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    return file


def command(file: Path, busy: int = 0) -> list[str]:
    options = [f"--busy={busy}", f"--rootdir={file.parent}"]
    return [sys.executable, "-m", "tests.shake", *options, str(file)]


def left_behind(file: Path) -> list[str]:
    """By number and beginning: another test's process may have the number of one that is gone."""
    pids = file.with_name("pids")
    return pids.read_text().splitlines() if pids.exists() else []


@pytest.mark.parametrize(("number", "busy"), [(signal.SIGINT, 0), (signal.SIGTERM, 1)])
def test_it_tells_what_fell_and_stopped_by_a_signal_it_ends_all(
    file: Path, number: signal.Signals, busy: int
) -> None:
    with subprocess.Popen(
        command(file, busy), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as shaking:
        assert shaking.stdout is not None
        lines = iter(shaking.stdout.readline, "")
        done = next(line for line in lines if line.startswith("seed "))
        assert "1 failed, 1 passed" in done
        shaking.send_signal(number)
        told = shaking.stdout.read()
        assert shaking.wait(60) == 1
    assert " tests fell" in told
    seed = done.split(":")[0].split()[1]
    assert f" × test_some.py::test_fragile  (seeds {seed}" in told
    assert left_behind(file)
    assert not [one for one in left_behind(file) if identity_of(int(one.split()[0])) == one]


def test_when_its_time_is_over_it_ends_what_still_runs(file: Path) -> None:
    file.write_text("import time\ndef test_that_lasts():\n    time.sleep(1_000)\n")
    shaken = subprocess.run(
        [*command(file), "--seconds=5"], cwd=ROOT, capture_output=True, text=True
    )
    assert shaken.returncode == 0
    assert "ended before it was done" in shaken.stdout
    assert "1 rounds, 0 tests fell" in shaken.stdout


def test_a_server_that_a_test_has_frozen_is_not_woken() -> None:
    with Server(REDIS_7) as server:
        pauses = Pauses(server.pid, seed=0)
        for freeze, state in ((False, "S"), (True, "T")):
            if freeze:
                server.freeze()
            pauses._pause(server.pid, 0.05)
            until(lambda state=state: state_of(server.pid) == state, "it sleeps, or is stopped")  # type: ignore[misc]
