"""The connections to one server that are open and free. A few, opened ahead of need, serve any number of threads and loops.

No lock: deques append and pop in one step, also for signal handlers that raise and greenlets that switch.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from weakref import WeakSet

from diana.stores.redis.connection.connection import Connection

FOR_THREADS = 2
"""One call is under way while the replies to another are handed out. More would make smaller batches."""
IDLE_SECONDS = 10.0


class Pool:
    def __init__(self) -> None:
        self._free: deque[Connection] = deque()
        # Weak: a connection that is lost between two lines, to a signal handler that raised, is gone from here too.
        self._all: WeakSet[Connection] = WeakSet()
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_empty(self) -> bool:
        return not self._free

    def take(self) -> Connection | None:
        """A free one; those that the server has closed meanwhile are dropped."""
        while True:
            try:
                connection = self._free.pop()
            except IndexError:
                return None
            if not connection.is_stale():
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

    def drop_idle(self, spare: int) -> None:
        """What a burst has opened: `take` takes from the other end."""
        while len(self._free) > spare and monotonic() - self._free[0].idle_since > IDLE_SECONDS:
            try:
                self.drop(self._free.popleft())
            except IndexError:
                return

    def abandon(self) -> None:
        """In a forked child: close our copies, and say nothing to the server."""
        self.is_closed = True
        for connection in list(self._all):
            connection.close()
