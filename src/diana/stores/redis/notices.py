"""What operators read: once per change, and never more than so many lines a minute."""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic

log = logging.getLogger("diana")

MOST_PER_MINUTE = 20


class Notices:
    def __init__(self) -> None:
        self._said: deque[float] = deque(maxlen=MOST_PER_MINUTE)
        self._suppressed = 0
        self._standing: set[str] = set()

    def warn(self, message: str) -> None:
        now = monotonic()
        if len(self._said) == MOST_PER_MINUTE and now - self._said[0] < 60:
            self._suppressed += 1
            return
        self._said.append(now)
        if self._suppressed:
            message += f" ({self._suppressed} messages about the store were suppressed)"
            self._suppressed = 0
        log.warning("%s", message)

    def warn_once(self, topic: str, message: str) -> None:
        """Once, until the topic is resolved."""
        if topic not in self._standing:
            self._standing.add(topic)
            self.warn(message)

    def is_standing(self, topic: str) -> bool:
        return topic in self._standing

    def resolve(self, topic: str) -> None:
        self._standing.discard(topic)
