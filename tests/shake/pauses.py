"""Stop a process of the tests, or a server of theirs, for a moment, and let it go on."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from threading import Event, Thread
from typing import Self

from tests.shake.processes import children_of, descendants_of, send, state_of

SHORTEST, LONGEST = 0.05, 2.0
BETWEEN = 1.5
"""Seconds between two pauses, on average."""


class Pauses:
    """Of the process and of all below it, one at a time, as long as the block lasts."""

    def __init__(self, pid: int, seed: int) -> None:
        self.count = 0
        self._pid = pid
        self._random = random.Random(seed)
        self._over = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """When this returns, what was stopped goes on."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._random.expovariate(1 / BETWEEN)):
            below, running = descendants_of(self._pid), self._running_tests()
            # As often the tests as any of their servers: it is the tests' own threads that we want to see standing still.
            some = below if below and self._random.random() < 0.5 else running
            chosen = self._random.choice(some)
            seconds = min(LONGEST, SHORTEST * (LONGEST / SHORTEST) ** self._random.random())
            self._pause(chosen, seconds)

    def _pause(self, pid: int, seconds: float) -> None:
        if state_of(pid) not in ("R", "S", "D"):
            return  # a test has frozen it, or it is gone
        self.count += 1
        send(pid, signal.SIGSTOP)
        try:
            self._over.wait(seconds)
        finally:
            self._resume(pid)

    def _resume(self, pid: int) -> None:
        """But not if a test has frozen it meanwhile; the tests stand still while we look."""
        running = self._running_tests()
        if pid in running:
            send(pid, signal.SIGCONT)
            return
        for one in running:
            send(one, signal.SIGSTOP)
        try:
            # D may be the wait for the very one that we have stopped, which is just being made: what follows it has to wait for us.
            while any(state_of(one) in ("R", "S") for one in running):
                time.sleep(0.001)
            if not Path(f"/proc/{pid}/cwd/frozen").exists():
                send(pid, signal.SIGCONT)
        finally:
            for one in running:
                send(one, signal.SIGCONT)

    def _running_tests(self) -> list[int]:
        """The process itself, or with `-n` the workers of pytest-xdist."""
        return [pid for pid in children_of(self._pid) if _is_worker(pid)] or [self._pid]


def _is_worker(pid: int) -> bool:
    try:
        return b"exec(eval(sys.stdin.readline()))" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
