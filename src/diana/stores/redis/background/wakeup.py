"""A background thread sleeps until it is needed: one lock, so that a signal handler that raises leaves nothing half done.

Made in the process that uses it, by its name in the module: a library that patches threading after us is heeded, and a queue or a
condition of the interpreter's own would block a hub of greenlets for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from diana.stores.redis.connection.budget import SLICES
from diana.stores.redis.notices import Notices


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


def start_thread(work: Callable[[], None], name: str, notices: Notices) -> threading.Thread | None:
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
