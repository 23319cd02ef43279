"""The thread that opens the connections of one server, ahead of need.

It does nothing else: a frozen server accepts connections and then says nothing. While this thread waits for such a server, the reconnector
finds out that the server has fallen silent.
"""

from __future__ import annotations

import logging
from threading import Thread

from diana.redis_client.connection import Connection
from diana.redis_client.redis_server import Server
from diana.redis_client.reply_errors import Failure, UnknownOutcome, Unreachable
from diana.redis_client.time_budget import Budget
from diana.runtime.background_thread import LONGEST_PAUSE, BackOff, Wakeup, start_thread
from diana.runtime.throttled_log import ThrottledLog
from diana.stores.redis.protocol.commands import hear_time

log = logging.getLogger("diana")

LOOK_SECONDS = 1.0
"""The pool may have become empty without a request that waits."""


class Opener:
    def __init__(self, server: Server, notices: ThrottledLog) -> None:
        self._server = server
        self._notices = notices
        self._wakeup = Wakeup()
        self._pausing = BackOff()
        self._is_closed = False
        self.thread: Thread | None = None

    def ensure(self) -> None:
        if self.thread is None and not self._is_closed:
            self.thread = start_thread(self._work, "diana-opener", self._notices)

    def wake(self) -> None:
        self._wakeup.wake()

    def begin_anew(self) -> None:
        """The server is back: open connections at once."""
        self._pausing.until = 0.0
        self.wake()

    def stop(self) -> None:
        self._is_closed = True
        self.wake()

    def _work(self) -> None:
        while not self._is_closed:
            try:
                pause = self._round()
            except Exception:
                log.exception("a background thread of the store failed; it goes on")
                pause = LONGEST_PAUSE
            if not self._is_closed:
                self._wakeup.sleep(pause)

    def _round(self) -> float:
        """Open connections while there is need; gives for how long there is nothing to do."""
        server, pausing = self._server, self._pausing
        while not self._is_closed and server.wants_connection():
            if pausing.left > 0:
                return pausing.left
            try:
                connection = self._open()
            except Failure as failure:
                pausing.fail()
                self._note(failure)
            else:
                self._notices.resolve(f"connect {server.endpoint}")
                server.offer(connection)
        return LOOK_SECONDS

    def _note(self, failure: Failure) -> None:
        """That one cannot be opened affects no request that has a connection."""
        server = self._server
        silent = isinstance(failure, UnknownOutcome) or getattr(failure, "silent", False)
        reason = Unreachable(str(failure), silent)
        server.cannot_connect(reason)
        if not server.is_lost:
            self._notices.warn_once(
                f"connect {server.endpoint}",
                f"store {server.endpoint}: cannot open another connection: {reason}",
            )

    def _open(self) -> Connection:
        server = self._server
        connection = server.open_connection()
        if not server.clock.is_set:
            # Before the first is used, or its first command could not say how long it may write.
            try:
                connection.exchange(hear_time(server.clock), Budget(server.patience))
            except BaseException:
                connection.close()
                raise
        return connection
