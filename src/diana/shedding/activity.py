"""What the middleware tells of this process: requests inside, and the loop that serves them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
