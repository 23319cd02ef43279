"""What operators read: once per change, and never more than so many lines a minute."""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic

from diana.stores.lock import fork_safe_lock

log = logging.getLogger("diana")

MOST_PER_MINUTE = 20


class Notices:
    def __init__(self) -> None:
        self._said: deque[float] = deque(maxlen=MOST_PER_MINUTE)
        self._suppressed = 0
        self._standing: set[str] = set()
        self._lock = fork_safe_lock()

    def warn(self, message: str) -> None:
        now = monotonic()
        with self._lock:
            if len(self._said) == MOST_PER_MINUTE and now - self._said[0] < 60:
                self._suppressed += 1
                return
            self._said.append(now)
            suppressed, self._suppressed = self._suppressed, 0
        if suppressed:
            message += f" ({suppressed} messages about the store were suppressed)"
        log.warning(
            "%s", message
        )  # without the lock: a handler may take its time, or ask a limiter

    def warn_once(self, topic: str, message: str) -> None:
        """Once, until the topic is resolved."""
        with self._lock:
            if topic in self._standing:
                return
            self._standing.add(topic)
        self.warn(message)

    def is_standing(self, topic: str) -> bool:
        return topic in self._standing

    def resolve(self, topic: str) -> None:
        self._standing.discard(topic)
