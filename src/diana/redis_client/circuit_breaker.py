"""The circuit breaker of one server: may requests query it at all?

Silence, not slowness, opens it. If nothing has arrived for half a request's budget, the server is suspected, and a background thread asks
for the time on a second connection that is open already. If nothing arrives there either until the budget is over, the server has fallen
silent. If anything arrives, on any connection, the suspicion is over: one reply that is late, lost or cut fails its own call only.

The breaker also opens if every call failed for half a second, and if the server refuses or violates the protocol. While it is open no
request queries the store; only a background thread, after a probe with the real script, closes it. There is no half-open state in which a
client's request would be the probe.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from diana.redis_client.redis_url import Endpoint
from diana.redis_client.reply_errors import (
    BudgetExceeded,
    DeadlinePassed,
    Failure,
    NoConnection,
    ProtocolError,
    ServerRefused,
    UnknownOutcome,
    Unreachable,
)
from diana.runtime.fork import fork_safe_lock
from diana.runtime.throttled_log import ThrottledLog

FAILING_SECONDS, FAILED_CALLS = 0.5, 3
"""Every call failed for so long, and so many did."""
SILENT_SECONDS = 1.0


class Breaker:
    def __init__(
        self,
        endpoint: Endpoint,
        notices: ThrottledLog,
        count: Callable[..., None],
        when_opened: Callable[[], None],
        wake: Callable[[], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`wake`: the background thread of this server."""
        self._clock = clock
        self.is_open = False
        self.heard = 0.0
        """When the server last said anything, on any connection, by the monotonic clock."""
        self.suspected = 0.0
        """When the call was sent for which the server was suspected last; 0: it was not since the breaker changed."""
        self._endpoint = endpoint
        self._notices = notices
        self._count = count
        self._when_opened = when_opened
        self._wake = wake
        self._lock = fork_safe_lock()
        self._failing_since = 0.0
        """When the first call failed since one was last answered in time; 0: none has."""
        self._failed = 0
        """How many have since."""
        self._reason_is_known = True

    def hear(self, moment: float) -> None:
        self.heard = moment

    @property
    def is_suspect(self) -> bool:
        """A call has waited for half its budget, and nothing was heard since it was sent."""
        return self.suspected > self.heard

    def suspect(self, sent: float) -> None:
        """Nothing came yet to a call that was sent then, and half its budget is over. Is it the server, or one reply?"""
        if self.heard < sent and not (self.is_suspect or self.is_open):
            self.suspected = sent
            self._wake()

    def answered(self) -> None:
        """A call was answered in time."""
        if self._failed:
            self._failing_since, self._failed = 0.0, 0

    def note(self, error: BaseException, sent: float) -> None:
        """What went wrong with a call that was sent then."""
        if isinstance(error, ProtocolError | ServerRefused):
            self.open(error)
        elif isinstance(error, UnknownOutcome | DeadlinePassed):
            is_silent = (
                isinstance(error, BudgetExceeded) and error.proves_silence and self.is_suspect
            )
            if self._count_failed(self._clock()) or is_silent:
                self.open(error)
            elif isinstance(error, BudgetExceeded):
                self.suspect(sent)

    def note_no_connection(self, reason: Failure) -> None:
        """There is none, and none could be had in time: requests that come next shall not wait as long.

        A server that was heard a moment ago may have lost no more than the replies that it takes to open one; but one that says
        something each time, and never enough to open one, is as good as lost.
        """
        now = self._clock()
        has_failed_long = self._count_failed(now)
        silent = not isinstance(reason, Unreachable) or reason.silent
        if not silent or has_failed_long or now - self.heard >= SILENT_SECONDS:
            self.open(reason)

    def note_no_second_connection(self, reason: Unreachable) -> None:
        """While the server was suspected no second connection could be opened. If nothing came there either, it has fallen silent."""
        if reason.silent and self.is_suspect:
            self.open(BudgetExceeded())

    def _count_failed(self, now: float) -> bool:
        """Whether every call has failed for long enough, with this one."""
        self._failing_since = self._failing_since or now
        self._failed += 1
        return self._failed >= FAILED_CALLS and now - self._failing_since >= FAILING_SECONDS

    def open(self, reason: Exception) -> None:
        with self._lock:
            if self.is_open:
                return
            self.is_open, self.suspected = True, 0.0
            self._failing_since, self._failed = 0.0, 0
            self._reason_is_known = not isinstance(reason, NoConnection)
            self._notices.queue(f"store {self._endpoint} unreachable: {reason}; counting locally")
        self._count("breaker_opened")
        self._notices.tell()
        self._when_opened()

    def explain(self, reason: Exception) -> None:
        """Why, if the request that opened it could not know: that no connection came in time says nothing."""
        if not self._reason_is_known:
            self._reason_is_known = True
            self._notices.warn(f"store {self._endpoint} cannot be connected to: {reason}")

    def close(self) -> None:
        with self._lock:
            if not self.is_open:
                return
            self.is_open, self.suspected = False, 0.0
            self._notices.queue(f"store {self._endpoint} is back; counting globally again")
        self._count("breaker_closed")
        self._notices.tell()
