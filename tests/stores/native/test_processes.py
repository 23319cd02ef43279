"""Eight processes on one zone, exactly the limit; and processes that are killed in the middle of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from mmap import mmap
from pathlib import Path

import pytest

from diana import Limiter
from diana.stores.zone.store import SharedStore
from tests.servers.waiting import until
from tests.stores.native.worker import limiter
from tests.stores.shared.zones import zone_name

ROOT = Path(__file__).parents[3]
PROCESSES = 8


def started(name: str, code: str, limit: int, keys: int, takes: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stores.native.worker", name, code, *map(str, (limit, keys, takes))],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def say(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(line)
    worker.stdin.flush()


def heard(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


@pytest.mark.parametrize("keys", [1, 1_000])
@pytest.mark.parametrize("code", ["TB", "LB", "W", "SW", "SL"])
def test_eight_processes_admit_exactly_the_limit(code: str, keys: int) -> None:
    takes = 50_000
    limit = min(takes * PROCESSES // 2, 10_000) if keys == 1 else takes * PROCESSES // keys // 2
    with zone_name() as name, ExitStack() as stack:
        SharedStore(name, 64 << 20)
        workers = [
            stack.enter_context(started(name, code, limit, keys, takes)) for _ in range(PROCESSES)
        ]
        assert [heard(worker) for worker in workers] == ["ready"] * PROCESSES
        for worker in workers:
            say(worker, "go\n")
        passed = [int(heard(worker)) for worker in workers]
        assert sum(passed) == limit * keys
        assert not limiter(name, code, limit).take("key 0")


CODES = ("TB", "LB", "W", "SW", "SL")
LONGEST_TAKE_S = 0.1
KEYS = 50
LIMITS = {"SL": 10_000}
"""How much of a key may pass; of the others as much as they like."""


class Books:
    """What each forked process was granted, written down where its parent reads it: also when it is killed."""

    def __init__(self) -> None:
        self._pages = mmap(-1, 8 * len(CODES) * 1_000)
        self.granted = memoryview(self._pages).cast("q")

    def has_begun(self, number: int) -> bool:
        return any(self.granted[number * len(CODES) : (number + 1) * len(CODES)])

    def total(self, code: str) -> int:
        return sum(self.granted[CODES.index(code) :: len(CODES)])


def test_killed_in_the_middle_of_it_two_hundred_times() -> None:
    """No process hangs, the zone stays, and the count differs by no more than what was in flight at the kills."""
    kills, chance, books = 200, random.Random(7), Books()
    waits: list[float] = []
    with zone_name() as name:
        store = SharedStore(name, 4 << 20)
        takers = {code: limiter(name, code, LIMITS.get(code, 10**7)) for code in CODES}
        others = [_forked(takers, books, number) for number in range(2)]
        try:
            for number in range(kills):
                pid = _forked(takers, books, 2 + number)
                # On a busy machine it may not have begun before it is killed, and then it held no lock.
                until(lambda number=number: books.has_begun(2 + number), "it takes")  # type: ignore[misc]
                time.sleep(0.001 + chance.random() * 0.02)
                os.kill(pid, signal.SIGKILL)
                for code, some in takers.items():
                    began = time.monotonic()
                    some.peek("key 0")
                    waits.append(time.monotonic() - began)
                    assert some.peek(f"key {number % KEYS}").limit, code
                os.waitpid(pid, 0)
        finally:
            for pid in others:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        for code, some in takers.items():
            decisions = [some._peek(f"key {number}", 0) for number in range(KEYS)]
            counted = sum(one.limit - one.remaining for one in decisions)
            assert 0 <= counted - books.total(code) <= kills + len(others), code
            assert books.total(code) > kills, code
        assert store.counts()["recovered"] > 0, "none was killed while it held a lock"
        assert store.counts()["keys"] == KEYS * len(CODES)
    # This process too may stand still for a while; a lock that is not let go of would show every time.
    assert sorted(waits)[len(waits) * 95 // 100] < LONGEST_TAKE_S


def _forked(takers: dict[str, Limiter], books: Books, number: int) -> int:
    """A process that takes as fast as it can until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    try:
        names = [f"key {key}" for key in range(KEYS)]
        takes = [
            (number * len(CODES) + place, takers[code].take) for place, code in enumerate(CODES)
        ]
        granted = books.granted
        while True:
            for key in names:
                for place, take in takes:
                    if take(key):
                        granted[place] += 1
    finally:
        os._exit(1)


def test_a_lock_of_the_dead_is_taken_over_at_once() -> None:
    """A process waits for a lock whose holder is killed meanwhile."""
    books = Books()
    with zone_name() as name:
        takers = {code: limiter(name, code, LIMITS.get(code, 10**7)) for code in CODES}
        pids = [_forked(takers, books, number) for number in range(8)]
        slowest = 0.0
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            for number in range(KEYS):
                takers["TB"].take(f"key {number}")
            slowest = max(slowest, time.monotonic() - began)
            os.waitpid(pid, 0)
    assert slowest < 10, "a machine may be busy, but not a hang"
