"""How a background thread starts, sleeps until it is needed, pauses after failures, and ends.

The thread sleeps by one lock, so that a signal handler that raises leaves nothing half done. Locks and threads are made in the process that
uses them, by their names in the module: a library that patches threading later (gevent) is respected; a queue or a condition of the
interpreter's own would block a hub of greenlets for ever. Each pause between attempts is longer than the last, up to a second, and
jittered, so that a fleet does not retry in step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from random import SystemRandom
from time import monotonic

from diana.redis_client.time_budget import SLICES
from diana.runtime.throttled_log import ThrottledLog

chance = SystemRandom()
"""Not the application's: it may have seeded that one."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
STEADY_SECONDS = 10.0
"""After so long without a failure the pauses begin anew."""


class Wakeup:
    def __init__(self) -> None:
        self._bell = threading.Lock()
        self._bell.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # it has not slept since the last time
            self._bell.release()

    def sleep(self, seconds: float) -> None:
        """Until woken, at most so long; however often it was woken meanwhile."""
        self._bell.acquire(timeout=max(0.001, seconds))
        while self._bell.acquire(blocking=False):
            pass


def start_thread(
    work: Callable[[], None], name: str, notices: ThrottledLog
) -> threading.Thread | None:
    """None if the system has no room for another; then the store does without until it has."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        notices.warn_once("threads", f"cannot start a background thread: {error}; counting locally")
        return None
    notices.resolve("threads")
    return thread


def join_thread(thread: threading.Thread, seconds: float) -> None:
    """Wait until it has ended, for at most so long; a process that stands still meanwhile loses one slice of it."""
    for _ in range(SLICES):
        thread.join(seconds / SLICES)
        if not thread.is_alive():
            return


class BackOff:
    """Longer and longer pauses, with jitter; flapping does not shorten them."""

    def __init__(self) -> None:
        self._failures = 0
        self._failed_at = 0.0
        self.until = 0.0

    def fail(self) -> None:
        now = monotonic()
        if now - self._failed_at > STEADY_SECONDS:
            self._failures = 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._failures, 10))
        self._failures += 1
        self._failed_at = now
        self.until = now + pause * (0.5 + chance.random() / 2)

    @property
    def left(self) -> float:
        return self.until - monotonic()


FIRST_SECONDS, LONGEST_SECONDS = 0.1, 1.0

_random = SystemRandom()
"""Not the shared generator: an application that seeds it wants to see its own numbers. And each forked child has its own."""


class Backoff:
    def __init__(self) -> None:
        self._failures = 0

    @property
    def is_retry(self) -> bool:
        return self._failures > 0

    def reset(self) -> None:
        self._failures = 0

    def next_seconds(self) -> float:
        self._failures += 1
        longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(self._failures, 10))
        return longest * (0.5 + _random.random() / 2)
