"""`make shake` finds a test that cannot bear to stand still, names it, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.shake.pauses import Pauses
from tests.shake.processes import children_of, end_all, identity_of, state_of

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
        command(file, busy),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as shaking:
        assert shaking.stdout is not None
        lines = iter(shaking.stdout.readline, "")
        done = next(line for line in lines if line.startswith("seed "))
        assert "1 failed, 1 passed" in done
        os.killpg(shaking.pid, number)  # as a terminal does
        told = shaking.stdout.read()
        assert shaking.wait(60) == 1
    assert "tests that fell: 1\n" in told
    seed = done.split(":")[0].split()[1]
    assert f" × test_some.py::test_fragile  (seeds {seed}" in told
    assert "Traceback" not in told
    assert "ended with" not in told
    assert left_behind(file)
    assert not [one for one in left_behind(file) if identity_of(int(one.split()[0])) == one]


def test_when_its_time_is_over_it_ends_what_still_runs(file: Path) -> None:
    file.write_text("import time\ndef test_that_lasts():\n    time.sleep(1_000)\n")
    shaken = subprocess.run(
        [*command(file), "--seconds=5"], cwd=ROOT, capture_output=True, text=True
    )
    assert shaken.returncode == 1  # nobody may take it for a suite that stood
    assert "ended before it was done" in shaken.stdout
    assert "whole rounds: 0, tests run: 0, tests that fell: 0\n" in shaken.stdout


def test_when_every_test_had_its_turn_and_none_fell_all_is_well(file: Path) -> None:
    file.write_text("def test_sturdy():\n    pass\n")
    shaken = subprocess.run(
        [*command(file), "--rounds=2"], cwd=ROOT, capture_output=True, text=True
    )
    assert shaken.returncode == 0, shaken.stdout
    assert "whole rounds: 2, tests run: 2, tests that fell: 0\n" in shaken.stdout


def test_a_worker_that_dies_takes_its_test_with_it(file: Path) -> None:
    file.write_text("import os\ndef test_deadly():\n    os.abort()\n")
    shaken = subprocess.run(
        [*command(file), "--rounds=1", "-n2"], cwd=ROOT, capture_output=True, text=True
    )
    assert shaken.returncode == 1
    assert " × test_some.py::test_deadly " in shaken.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--busy=-1"], "-1 is no number of them"),
        (["--seconds=0"], "0 is no length of time"),
        (["--seconds=nan"], "nan is no length of time"),
        (["tests/not_there"], "file or directory not found: tests/not_there"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["-k", "no_test_has_this_name", "tests/shake"], "deselected"),
    ],
)
def test_what_cannot_be_run_is_told_at_once(options: list[str], told: str) -> None:
    shaken = subprocess.run(
        [sys.executable, "-m", "tests.shake", "--busy=0", "--seconds=60", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert shaken.returncode == 2
    assert told in shaken.stderr


def test_a_server_that_a_test_has_frozen_is_not_woken() -> None:
    with Server(REDIS_7) as server:
        pauses = Pauses(server.pid, seed=0)
        for freeze, state in ((False, "S"), (True, "T")):
            if freeze:
                server.freeze()
            pauses._pause(server.pid, 0.05)
            until(lambda state=state: state_of(server.pid) == state, "it sleeps, or is stopped")  # type: ignore[misc]


def test_a_child_that_is_just_being_made_is_let_go_on(tmp_path: Path) -> None:
    """Until it is another program its parent stands still, and not even a signal to stop reaches it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # The child opens the pipe before it becomes `true`, and there it waits.
    spawns = (
        "import os, sys\n"
        "opens = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)\n"
        "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}, file_actions=[opens]), 0)"
    )
    with subprocess.Popen([sys.executable, "-c", spawns, str(pipe)]) as parent:
        try:
            until(lambda: children_of(parent.pid), "the child is there")
            (child,) = children_of(parent.pid)
            until(lambda: state_of(parent.pid) == "D", "its parent waits for it")
            pause = Thread(target=Pauses(parent.pid, seed=0)._pause, args=(child, 0.05))
            pause.start()
            until(lambda: not pause.is_alive(), "the pause is over")
            pipe.open("w").close()
            assert parent.wait(60) == 0
        finally:
            end_all(children_of(parent.pid))
            parent.kill()
