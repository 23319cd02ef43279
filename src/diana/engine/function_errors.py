"""What functions of the application raise while a request is checked: counted, and logged at most once a minute for each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from diana.core.request import Request, printable
from diana.core.rule import Rule

log = logging.getLogger("diana")

PERIOD_SECONDS = 60.0
INSTEAD = {
    "cost": "the request is charged 1",
    "limit": "the base limit applies",
    "allow": "the request is not exempt",
}


class FunctionErrors:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._next: dict[tuple[str, str], float] = {}
        """By rule and function, until when nothing is logged: there are no more of them than functions."""

    def note(self, rule: Rule, request: Request, function: str, error: Exception) -> None:
        """Once per request and function, though a request may be checked again while it waits."""
        known, name = request.function_errors or {}, rule.distinct_name
        if (name, function) in known:
            return
        request.function_errors = {**known, (name, function): error}
        self.note_error(name, function, error)

    def note_error(self, name: str, function: str, error: Exception) -> None:
        self.count += 1
        now = self._clock()
        if now < self._next.get((name, function), now):
            return
        self._next[name, function] = now + PERIOD_SECONDS
        log.warning(
            "%s= of %r failed, so %s: %s", function, name, INSTEAD[function], _in_words(error)
        )


def _in_words(error: Exception) -> str:
    """What it says may be the client's words, and it may be of a class that cannot be shown."""
    try:
        return printable(repr(error))
    except Exception:
        return type(error).__name__
