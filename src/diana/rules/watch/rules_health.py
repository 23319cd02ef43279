"""What is wrong with a source of rules: logged once, and visible until it has recovered."""

from __future__ import annotations

import logging
from threading import Lock
from typing import NamedTuple

from diana.core.plain_text import plain

log = logging.getLogger("diana")


class Problem(NamedTuple):
    """What is wrong with a source at the moment."""

    where: str
    """`file`, `remote` or `copy`."""
    message: str


class Problems:
    """At most one per source, the newest."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._now: dict[str, Problem] = {}
        self._unreported: set[str] = set()

    def now(self) -> tuple[Problem, ...]:
        with self._lock:
            return tuple(self._now.values())

    def expect(self, where: str, message: str) -> None:
        """A problem until the source is first heard of, but not logged: a source that answers soon was never lost."""
        with self._lock:
            self._now[where] = Problem(where, message)
            self._unreported.add(where)

    def report(self, where: str, message: str) -> None:
        """Logged once, until something else is wrong."""
        problem = Problem(where, plain(message, keep="\n"))
        with self._lock:
            if self._now.get(where) == problem:
                return
            self._now[where] = problem
            self._unreported.discard(where)
        log.error("keeping the last good rules: %s", problem.message)

    def clear(self, where: str) -> None:
        """The source works again."""
        with self._lock:
            was = self._now.pop(where, None)
            was_logged = where not in self._unreported
            self._unreported.discard(where)
        if was is not None and was_logged:
            log.warning("rules source recovered: %s", where)

    def after_fork(self) -> None:
        """A thread that held the lock in the parent does not exist here to release it."""
        self._lock = Lock()
