"""What is wrong with where the rules come from: told once, and visible until all is well."""

from __future__ import annotations

import logging
from threading import Lock
from typing import NamedTuple

log = logging.getLogger("diana")


class Trouble(NamedTuple):
    """What is wrong with a source now."""

    where: str
    """`file`, `remote` or `kept`."""
    message: str


class Troubles:
    """One of each source at most, the newest."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._now: dict[str, Trouble] = {}
        self._untold: set[str] = set()

    def now(self) -> tuple[Trouble, ...]:
        with self._lock:
            return tuple(self._now.values())

    def await_first(self, where: str, message: str) -> None:
        """Until the first word of it; who is quick is never complained about."""
        with self._lock:
            self._now[where] = Trouble(where, message)
            self._untold.add(where)

    def complain(self, where: str, message: str) -> None:
        """Logged once, until something else is wrong."""
        trouble = Trouble(where, message)
        with self._lock:
            if self._now.get(where) == trouble:
                return
            self._now[where] = trouble
            self._untold.discard(where)
        log.error("the last good rules stay: %s", message)

    def well(self, where: str) -> None:
        with self._lock:
            was = self._now.pop(where, None)
            told = where not in self._untold
            self._untold.discard(where)
        if was is not None and told:
            log.warning("the rules can be had again (%s)", where)

    def after_fork(self) -> None:
        """Whoever held the lock in the parent is not there to let go."""
        self._lock = Lock()
