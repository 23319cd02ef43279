"""What operators read: once per change, in the order of the changes, and never more than so many lines a minute."""

from __future__ import annotations

import logging
import threading
from collections import deque
from time import monotonic

from diana.runtime.fork import fork_safe_lock

log = logging.getLogger("diana")

MOST_PER_MINUTE = 20


class ThrottledLog:
    def __init__(self) -> None:
        self._said: deque[float] = deque(maxlen=MOST_PER_MINUTE)
        self._suppressed = 0
        self._queued: deque[str] = deque()
        self._standing: set[str] = set()
        self._lock = fork_safe_lock()
        self._telling = fork_safe_lock()
        self._teller = 0
        """The thread that tells, if one does."""

    def warn(self, message: str) -> None:
        self.queue(message)
        self.tell()

    def queue(self, message: str) -> None:
        """To be told after all that was queued before; may be called with a lock held."""
        self._queued.append(message)

    def tell(self) -> None:
        """By one thread at a time, so that the order is kept."""
        if self._teller == threading.get_ident():
            return  # a handler of logs has asked a limiter itself: it is told when the handler is done
        with self._telling:
            self._teller = threading.get_ident()
            try:
                while self._queued:
                    self._say(self._queued.popleft())
            finally:
                self._teller = 0

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

    def _say(self, message: str) -> None:
        now = monotonic()
        if len(self._said) == MOST_PER_MINUTE and now - self._said[0] < 60:
            self._suppressed += 1
            return
        self._said.append(now)
        if self._suppressed:
            message += f" ({self._suppressed} messages about the store were suppressed)"
            self._suppressed = 0
        log.warning("%s", message)
