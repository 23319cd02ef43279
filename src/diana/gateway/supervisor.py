"""Several worker processes on one listening socket: started, watched, replaced when they die, and stopped together.

uvicorn has a supervisor too, but its workers have to be found by an import, restart without a pause when they die at once, and know
nothing of the gateway's grace. Here a worker is a program of its own (`diana.gateway.worker`): nothing of the parent's threads and locks is
in it. It inherits three descriptors: the socket; a pipe to say that it serves; and the end of a pipe that closes with the parent, so that
workers do not outlive it.

SIGTERM and SIGINT stop all of them, with their grace; SIGINT again stops them at once. SIGHUP replaces them one by one: the next one is
stopped only when the one before it is served by its successor, so no connection is refused meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

log = logging.getLogger("diana")

SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
HEALTHY_SECONDS = 10.0
"""Who has lived so long is replaced at once."""
AFTER_GRACE_SECONDS = 5.0
LOOK_SECONDS = 1.0
"""Should a signal be missed."""

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Worker:
    def __init__(self, command: list[str], listening: socket.socket, life: int) -> None:
        self.ready_end, ready = os.pipe()
        words = [*command, str(listening.fileno()), str(ready), str(life)]
        try:
            self.process = subprocess.Popen(words, pass_fds=(listening.fileno(), ready, life))  # noqa: S603
        finally:
            os.close(ready)
        self.started = monotonic()
        self.is_ready = False
        self.kill_at: float | None = None

    def stop(self, grace_seconds: float) -> None:
        if self.kill_at is None:
            self.kill_at = monotonic() + grace_seconds + AFTER_GRACE_SECONDS
            with suppress(ProcessLookupError):
                self.process.terminate()

    def kill_if_due(self) -> None:
        if self.kill_at is not None and monotonic() >= self.kill_at:
            with suppress(ProcessLookupError):
                self.process.kill()


class Supervisor:
    def __init__(
        self,
        options: Mapping[str, Any],
        listening: socket.socket,
        workers: int,
        grace_seconds: float,
        announce: Callable[[], None],
    ) -> None:
        """`options` are the worker's; they have to be plain enough for JSON."""
        self._command = [sys.executable, "-m", "diana.gateway.worker", json.dumps(options)]
        self._listening = listening
        self._number = workers
        self._grace_seconds = grace_seconds
        self._announce = announce
        self._workers: list[Worker] = []
        self._to_replace: list[Worker] = []
        """By SIGHUP, in this order."""
        self._successor: Worker | None = None
        self._announced = False
        self._stopping = False
        self._failed = False
        self._pause = SHORTEST_PAUSE
        self._start_at = 0.0

    def run(self) -> bool:
        """Until it is stopped. False: the workers could not start."""
        life_end, life = os.pipe()
        self._life_end = life_end
        try:
            with _signals() as signals:
                while not (self._stopping and not self._workers):
                    self._fill_up()
                    self._wait(signals)
                    for number in _read(signals):
                        self._heed(number)
                    self._note_ready()
                    self._reap()
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.wait()
            os.close(life)
            os.close(life_end)
        return not self._failed

    def _wait(self, signals: int) -> None:
        ends = [worker.ready_end for worker in self._workers if not worker.is_ready]
        moments = [worker.kill_at for worker in self._workers if worker.kill_at is not None]
        if len(self._workers) < self._number and not self._stopping:
            moments.append(self._start_at)
        soonest = min(moments, default=monotonic() + LOOK_SECONDS)
        select.select([signals, *ends], [], [], max(0.0, min(soonest - monotonic(), LOOK_SECONDS)))

    def _heed(self, number: int) -> None:
        if number == signal.SIGHUP and self._announced and not self._stopping:
            if not self._to_replace:
                log.warning("replacing %d workers, one by one", len(self._workers))
            self._to_replace = [worker for worker in self._workers if worker.kill_at is None]
        elif number in (signal.SIGTERM, signal.SIGINT):
            if self._stopping and number == signal.SIGINT:
                for worker in self._workers:
                    worker.kill_at = 0.0
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.stop(self._grace_seconds)

    def _fill_up(self) -> None:
        wanted = self._number + (self._successor is not None)
        if self._to_replace and self._successor is None and not self._stopping:
            self._successor = self._started()
            return
        standing = [worker for worker in self._workers if worker.kill_at is None]
        while len(standing) < wanted and not self._stopping and monotonic() >= self._start_at:
            standing.append(self._started())

    def _started(self) -> Worker:
        worker = Worker(self._command, self._listening, self._life_end)
        self._workers.append(worker)
        return worker

    def _note_ready(self) -> None:
        for worker in self._workers:
            if not worker.is_ready and _has_word(worker.ready_end):
                worker.is_ready = True
                if worker is self._successor:
                    self._retire_next()
        serving = sum(worker.is_ready for worker in self._workers)
        if not self._announced and serving == self._number:
            self._announced = True
            self._announce()

    def _retire_next(self) -> None:
        self._successor = None
        while self._to_replace:
            old = self._to_replace.pop(0)
            if old in self._workers:
                old.stop(self._grace_seconds)
                return

    def _reap(self) -> None:
        for worker in list(self._workers):
            worker.kill_if_due()
            code = worker.process.poll()
            if code is None:
                continue
            self._workers.remove(worker)
            os.close(worker.ready_end)
            if self._stopping or worker.kill_at is not None:
                continue
            if not self._announced:
                self._failed = True
                self._stop()
            elif worker is self._successor:
                log.error("a new worker did not start (%s); the others go on", _end(code))
                self._successor, self._to_replace = None, []
            else:
                self._replace_later(worker, code)

    def _replace_later(self, worker: Worker, code: int) -> None:
        now = monotonic()
        if now - worker.started >= HEALTHY_SECONDS:
            self._pause, self._start_at = SHORTEST_PAUSE, now
        else:
            self._start_at = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        after = self._start_at - now
        log.error(
            "worker %d died (%s); another one starts %s",
            worker.process.pid,
            _end(code),
            f"in {after:.1f} s" if after else "now",
        )


def _has_word(end: int) -> bool:
    """At the end of a pipe without one, its process has died: that is seen when it is reaped."""
    return bool(select.select([end], [], [], 0)[0]) and bool(os.read(end, 1))


def _end(code: int) -> str:
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor from which the numbers of the signals are read that have come."""
    end, begin = os.pipe()
    os.set_blocking(end, False)
    os.set_blocking(begin, False)
    before = {each: signal.signal(each, lambda *_: None) for each in HEEDED}
    woken = signal.set_wakeup_fd(begin, warn_on_full_buffer=False)
    try:
        yield end
    finally:
        signal.set_wakeup_fd(woken)
        for each, handling in before.items():
            signal.signal(each, handling)
        os.close(begin)
        os.close(end)


def _read(signals: int) -> bytes:
    try:
        return os.read(signals, 1_024)
    except BlockingIOError:
        return b""
