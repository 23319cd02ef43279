from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.servers.awake import awake_seconds
from tests.servers.waiting import until

ROOT = Path(__file__).parents[2]
STOPPED = """
import time
from tests.servers.awake import awake_seconds
awake, real = awake_seconds(), time.monotonic()
print("ready", flush=True)
input()
print(time.monotonic() - real, awake_seconds() - awake)
"""


def test_it_goes_as_time_goes() -> None:
    real, begin = time.monotonic(), awake_seconds()
    until(lambda: awake_seconds() - begin > 0.2, "it goes on")
    assert time.monotonic() - real >= 0.2


def test_a_pause_of_the_process_hardly_counts() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        begin = time.monotonic()
        until(lambda: time.monotonic() - begin > 1.0, "a while has passed")
        os.kill(child.pid, signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        real, awake = map(float, child.stdout.readline().split())
    assert real > 1.0
    assert awake < real - 0.8


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_it_goes_in_a_forked_child() -> None:
    awake_seconds()
    child = os.fork()
    if child == 0:
        begin = awake_seconds()
        until(lambda: awake_seconds() > begin, "it goes on")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
