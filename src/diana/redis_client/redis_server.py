"""One server: its connections, its clock, its circuit breaker, and how threads and event loops ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diana.redis_client.circuit_breaker import Breaker
from diana.redis_client.connection import Connection
from diana.redis_client.connection_pool import FOR_THREADS, ConnectionPool
from diana.redis_client.handshake import open_connection, patience
from diana.redis_client.redis_url import Endpoint
from diana.redis_client.reply_errors import Failure, NoConnection, Unreachable
from diana.redis_client.time_budget import Budget
from diana.runtime.fork import fork_safe_lock
from diana.runtime.throttled_log import ThrottledLog
from diana.stores.redis.asyncio_batcher import AsyncioBatcher
from diana.stores.redis.protocol.batch import DecisionRequest
from diana.stores.redis.protocol.commands import Exchange
from diana.stores.redis.protocol.server_clock import ServerClock
from diana.stores.redis.thread_batcher import ThreadBatcher

LEAST_LOGIN_SECONDS = 0.2


class ServerSettings:
    """What all servers of a store have in common."""

    def __init__(
        self,
        login: Mapping[str, Any],
        budget: float,
        count: Callable[..., None],
        notices: ThrottledLog,
        wake: Callable[[Server], None],
        when_set_back: Callable[[], None],
        is_denied: Callable[[list[bytes]], bool],
        slot_of: Callable[[bytes], int] | None,
    ) -> None:
        self.login = login
        self.budget = budget
        self.count = count
        self.notices = notices
        self.wake = wake
        """A server wants a connection, or is lost."""
        self.when_set_back = when_set_back
        self.is_denied = is_denied
        """Whether the deny cache knows one of these keys."""
        self.slot_of = slot_of
        """In a cluster one script call reaches no further than a slot."""


class Server:
    def __init__(self, endpoint: Endpoint, settings: ServerSettings) -> None:
        self.endpoint = endpoint
        self._settings = settings
        self.patience = patience(settings.budget)
        self.clock = ServerClock(settings.when_set_back)
        self.scripts_are_loaded = False
        self.pool = ConnectionPool(settings.budget)
        self.breaker = Breaker(
            endpoint,
            settings.notices,
            settings.count,
            self._when_lost,
            lambda: settings.wake(self),
        )
        self.threads = ThreadBatcher(
            self.pool,
            self.breaker,
            self.clock,
            self._want_connection,
            settings.count,
            settings.slot_of,
            settings.is_denied,
        )
        self.ask: Callable[[DecisionRequest, Budget], Any] = self.threads.ask
        """For threads: what the script says to one request, or a Failure."""
        self._lock = fork_safe_lock()
        self._loops: dict[int, AsyncioBatcher] = {}

    @property
    def is_lost(self) -> bool:
        return self.breaker.is_open

    def fail(self, failure: Failure) -> None:
        """It refuses, or talks nonsense."""
        self.breaker.open(failure)

    def begin(self, exchanges: Sequence[Exchange], budget: Budget) -> Callable[[], list[Any]]:
        return self.threads.exchange(exchanges, budget)

    def line_of(self, loop: asyncio.AbstractEventLoop) -> AsyncioBatcher:
        line = self._loops.get(id(loop))
        return line if line is not None and line.loop is loop else self._new_line(loop)

    def open_connection(self) -> Connection:
        """For the background threads."""
        settings = self._settings
        login_seconds = max(LEAST_LOGIN_SECONDS, 2 * settings.budget)
        return open_connection(
            self.endpoint, settings.login, self.breaker.hear, self.patience, login_seconds
        )

    def wants_connection(self) -> bool:
        """A thread or a loop waits for one, or none is ready for the next."""
        if self.breaker.is_open or self.pool.is_closed:
            return False
        loops = list(self._loops.values())
        most = FOR_THREADS + len(loops)
        return len(self.pool) < most and (self.pool.is_empty or any(loops))

    def offer(self, connection: Connection) -> None:
        """A new connection: to a loop that waits, else to threads."""
        connection.suspect = self.breaker.suspect
        self.pool.add(connection)
        self._serve()

    def give_back(self, connection: Connection) -> None:
        """One that was taken from the pool."""
        self.pool.give(connection)
        self._serve()

    def _serve(self) -> None:
        if not self._serve_loop():
            self.threads.serve()

    def _serve_loop(self) -> bool:
        """Tell a loop that waits, and was not told yet, that a connection is ready; whether there is one."""
        for line in list(self._loops.values()):
            if line.wants_notice():
                _in_loop(line.loop, line.claim)
                return True
        return False

    def cannot_connect(self, failure: Unreachable) -> None:
        """That alone hurts no request that has a connection."""
        if not len(self.pool):
            self.breaker.note_no_connection(failure)
            self.breaker.explain(failure)

    def tidy(self) -> None:
        self._reclaim()
        self.pool.tidy()

    def close(self) -> None:
        self.pool.is_closed = True
        self.pool.drop_free()
        self.threads.fail_all(NoConnection("the store was closed"))
        for line in list(self._loops.values()):
            if line.loop.is_closed():
                line.close()
            else:
                _in_loop(line.loop, line.close)
        self._loops.clear()

    def abandon(self) -> None:
        """In a forked child: close our copies, touching no lock and no loop."""
        for line in list(self._loops.values()):
            line.abandon()
        self.pool.abandon()

    def _want_connection(self) -> None:
        if self.wants_connection():
            self._settings.wake(self)

    def _when_lost(self) -> None:
        """Connections in use are dropped by their users."""
        failure = NoConnection("the store is unreachable")
        self.scripts_are_loaded = False
        self.pool.drop_free()
        self.threads.fail_all(failure)
        for line in list(self._loops.values()):
            if not line.loop.is_closed():
                _in_loop(line.loop, lambda line=line: line.drain(failure))  # type: ignore[misc]
        self._settings.wake(self)

    def _new_line(self, loop: asyncio.AbstractEventLoop) -> AsyncioBatcher:
        self._reclaim()
        settings = self._settings
        line = AsyncioBatcher(
            loop,
            self.pool,
            self.breaker,
            self.clock,
            self._want_connection,
            settings.count,
            settings.slot_of,
            settings.is_denied,
            settings.budget,
            self._serve,
        )
        with self._lock:
            self._loops[id(loop)] = line
        return line

    def _reclaim(self) -> None:
        """Loops that are closed have no use for their connections."""
        with self._lock:
            closed = [known for known, line in self._loops.items() if line.loop.is_closed()]
            lines = [self._loops.pop(known) for known in closed]
        for line in lines:
            line.reclaim()


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        if asyncio._get_running_loop() is loop:
            loop.call_soon(call)
        else:
            loop.call_soon_threadsafe(call)
    except RuntimeError:  # closed meanwhile
        call()
