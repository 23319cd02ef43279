"""The thread that measures, twice a second, in the process that serves; the requests in flight in this process, and its event loop.

The first request starts the thread, so it never runs in uWSGI's master, and again in each process: a server may fork in C, unseen by
Python. Locks and threads are made by their names in the module: gevent may have patched it after this was imported.
"""

from __future__ import annotations

import logging
import os
import threading
from time import monotonic
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from diana.runtime.fork import fork_safe_lock, is_about_to_fork

if TYPE_CHECKING:
    from diana.shedding.load_shedder import Shedding
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("diana")

SAMPLE_SECONDS = 0.5
RETRY_SECONDS = 1.0
"""After which a process that had no room for a thread tries again."""


class Sampling:
    def __init__(self, shedding: Shedding) -> None:
        # Weak: a guard that nobody holds any more must not be kept by its thread.
        self._shedding = ref(shedding)
        self._closed = threading.Event()
        self._starting = fork_safe_lock()
        self._start_again = 0.0
        self._pid = 0

    @property
    def is_running(self) -> bool:
        return self._pid == os.getpid()

    def ensure(self) -> bool:
        """Whether a thread measures in this process."""
        if self.is_running:
            return True
        if monotonic() < self._start_again or is_about_to_fork():
            return False
        with self._starting:
            return self.is_running or self._start()

    def close(self) -> None:
        self._pid = 0
        self._closed.set()

    def _start(self) -> bool:
        shedding = self._shedding()
        if shedding is None:
            return False
        self._closed = threading.Event()
        thread = threading.Thread(
            target=_work, args=(self._shedding, self._closed), daemon=True, name="diana-shedding"
        )
        shedding.begin()
        try:
            thread.start()
        except RuntimeError as error:
            self._start_again = monotonic() + RETRY_SECONDS
            log.warning("cannot start a thread to measure the load: %s; shedding nothing", error)
            return False
        self._pid = os.getpid()
        return True


def _work(shedding: ReferenceType[Shedding], closed: threading.Event) -> None:
    while not closed.is_set():
        measured = shedding()
        if measured is None:
            return
        try:
            measured.sample(monotonic())
        except Exception:
            log.exception("measuring the load failed; it goes on")
        del measured
        closed.wait(SAMPLE_SECONDS)


class ProcessActivity:
    """`enter` and `leave` around each request that is let in, in whatever thread, greenlet or task."""

    def __init__(self) -> None:
        # A list's length is right after any mix of threads, without a lock; a number that is added to is not.
        self._inside: list[None] = []
        self.loop: Any = None

    @property
    def inflight(self) -> int:
        return len(self._inside)

    def enter(self) -> None:
        self._inside.append(None)

    def leave(self) -> None:
        try:  # noqa: SIM105  # a suppress costs more than all of this
            self._inside.pop()
        except IndexError:
            pass  # it came in before this process was forked

    @contextmanager
    def inside(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def after_fork(self) -> None:
        self._inside = []
        self.loop = None
