"""The connections to one server. A few, opened ahead of need, serve any number of threads and loops.

No lock, and no weak references: deques and sets change in one step, also for signal handlers that raise and greenlets that switch. A
connection that such a handler's exception has lost between two lines is one that is in use for too long: it no longer counts.
"""

from __future__ import annotations

from collections import deque
from math import inf
from time import monotonic

from diana.redis_client.connection import Connection

FOR_THREADS = 2
"""One call is under way while the replies to another are handed out. More would make smaller batches."""
IDLE_SECONDS = 10.0
FRESH_SECONDS = 0.0001
"""A connection that was given back so short a time ago is not looked at: no server closes what it has just answered on."""


class ConnectionPool:
    def __init__(self, budget: float) -> None:
        self._longest_use = 2 * budget + 5.0
        self._free: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self.is_closed = False

    def __len__(self) -> int:
        """How many there are that work, as far as is known."""
        free, lost = set(self._free), monotonic() - self._longest_use
        return sum(
            connection.taken_at > lost or connection in free for connection in list(self._all)
        )

    @property
    def opened(self) -> int:
        """How many there are, also those of which it is not known that they are lost."""
        return len(self._all)

    @property
    def is_empty(self) -> bool:
        """Whether none is free."""
        return not self._free

    def take(self, for_ever: bool = False) -> Connection | None:
        """A free one; those that the server has closed meanwhile are dropped. `for_ever`: an event loop keeps it."""
        while True:
            try:
                connection = self._free.pop()
            except IndexError:
                return None
            now = monotonic()
            connection.taken_at = inf if for_ever else now
            is_fresh = now - connection.idle_since < FRESH_SECONDS
            if not (connection.has_more() if is_fresh else connection.is_stale()):
                return connection
            self.drop(connection)

    def add(self, connection: Connection) -> None:
        if self.is_closed:
            connection.close()
            return
        self._all.add(connection)
        self.give(connection)

    def give(self, connection: Connection) -> None:
        if self.is_closed:
            self.drop(connection)
            return
        connection.idle_since = monotonic()
        self._free.append(connection)

    def drop(self, connection: Connection) -> None:
        connection.close()
        self._all.discard(connection)

    def drop_free(self) -> None:
        while self._free:
            try:
                self.drop(self._free.popleft())
            except IndexError:
                return

    def tidy(self) -> None:
        """Drop what a burst has opened and nothing uses any more, but for one, and what was lost in use."""
        now = monotonic()
        while len(self._free) > 1 and now - self._free[0].idle_since > IDLE_SECONDS:
            try:
                self.drop(self._free.popleft())
            except IndexError:
                break
        for connection in self._all.difference(self._free):
            if now - connection.taken_at > IDLE_SECONDS + self._longest_use:
                self.drop(connection)

    def abandon(self) -> None:
        """In a forked child: close our copies, and say nothing to the server."""
        self.is_closed = True
        for connection in list(self._all):
            connection.close()
