"""The thread of one server: a frozen one holds up no request that needs another, nor another's healing.

It opens connections ahead of need, loads the scripts, and, while the breaker is open, probes with the real script and closes it; then it
settles, in small steps, what was counted here meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from random import SystemRandom
from time import monotonic

from diana.core.limit import Limit
from diana.core.meter import Meter, meter_from_limit
from diana.core.plugins import algorithms
from diana.stores.redis.background.control import Control
from diana.stores.redis.background.publisher import Publisher
from diana.stores.redis.background.wakeup import Wakeup, join_thread, start_thread
from diana.stores.redis.connection.budget import Budget
from diana.stores.redis.connection.connection import Connection
from diana.stores.redis.connection.server import Server
from diana.stores.redis.fallback import Fallback
from diana.stores.redis.notices import Notices
from diana.stores.redis.protocol.commands import acquire, hear_time
from diana.stores.redis.protocol.failures import (
    BadCounter,
    Failure,
    Moved,
    NoReply,
    Refused,
    Unreachable,
)
from diana.stores.redis.protocol.script import wire_limit

log = logging.getLogger("diana")
chance = SystemRandom()
"""Not the application's: it may have seeded that one."""

CHECK_SECONDS = 1.0
LEAST_CHECK_SECONDS = 0.01
LEAST_REPLY_SECONDS = 0.2
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
STEADY_SECONDS = 10.0
"""A server that was well for so long starts its back-off anew."""


class BackOff:
    """Longer and longer pauses, with jitter; flapping does not shorten them."""

    def __init__(self) -> None:
        self._failures = 0
        self._failed_at = 0.0
        self.until = 0.0

    def fail(self) -> None:
        now = monotonic()
        if now - self._failed_at > STEADY_SECONDS:
            self._failures = 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._failures, 10))
        self._failures += 1
        self._failed_at = now
        self.until = now + pause * (0.5 + chance.random() / 2)

    @property
    def left(self) -> float:
        return self.until - monotonic()


class Connector:
    def __init__(
        self,
        server: Server,
        publisher: Publisher,
        fallback: Fallback,
        budget: float,
        probe_key: Callable[[Server], bytes | None],
        belongs: Callable[[Server, bytes], bool],
        slot_of: Callable[[bytes], int],
        look_around: Callable[[], None],
        count: Callable[..., None],
        notices: Notices,
    ) -> None:
        self._server = server
        self._publisher = publisher
        self._fallback = fallback
        self._budget = budget
        self._probe_key = probe_key
        self._belongs = belongs
        self._slot_of = slot_of
        self._look_around = look_around
        self._count = count
        self._notices = notices
        # A reply that is lost holds this thread up no longer than it must: requests may wait for a connection.
        self._control = Control(server, max(LEAST_REPLY_SECONDS, 2 * budget))
        self._wakeup = Wakeup()
        self._is_closed = False
        self._probing = BackOff()
        self._connecting = BackOff()
        self._next_check = 0.0
        self._thread = start_thread(self._work, "diana-connector", notices)

    @property
    def is_alive(self) -> bool:
        return self._thread is not None

    def wake(self) -> None:
        self._wakeup.wake()

    def stop(self) -> None:
        self._is_closed = True
        self.wake()

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            join_thread(self._thread, seconds)

    def abandon(self) -> None:
        """In a forked child."""
        self._control.hang_up()

    def _work(self) -> None:
        while not self._is_closed:
            try:
                pause = self._round()
            except Exception:
                log.exception("a background thread of the store failed; it goes on")
                pause = LONGEST_PAUSE
            if pause > 0 and not self._is_closed:
                self._wakeup.sleep(pause)
        self._control.hang_up()

    def _round(self) -> float:
        """Do what is due; gives how long there is nothing to do."""
        server = self._server
        if server.is_lost:
            if self._probing.left <= 0:
                self._heal()
            if server.is_lost:
                return max(0.001, self._probing.left)
        if server.breaker.is_suspect:
            self._ask_if_alive()
            if server.is_lost:
                return 0.001
        self._connect()
        if monotonic() >= self._next_check:
            self._next_check = monotonic() + CHECK_SECONDS
            self._watched(self._check)
        if self._settles_more():
            return 0.0
        due = [self._next_check]
        if server.wants_connection():
            due.append(self._connecting.until)
        return max(0.001, min(due) - monotonic())

    def _ask_if_alive(self) -> None:
        """A call waits for a reply that does not come: has the server fallen silent, or was one reply lost?"""
        breaker = self._server.breaker
        breaker.is_checked, breaker.is_suspect = True, False
        seconds = max(self._budget / 2, LEAST_CHECK_SECONDS)
        try:
            with suppress(NoReply):
                self._control.exchange(hear_time(self._server.clock), seconds)
                return
            # The reply to this, too? Once more, on another connection.
            steps = hear_time(self._server.clock)
            self._watched(lambda: self._control.exchange(steps, seconds), True)
        except Failure:
            pass  # the next check tells
        finally:
            breaker.is_checked = False

    def _connect(self) -> None:
        """Open connections while there is need; that one cannot be opened hurts no request that has one."""
        server = self._server
        while not self._is_closed and server.wants_connection() and self._connecting.left <= 0:
            try:
                connection = self._open()
            except Failure as failure:
                self._connecting.fail()
                silent = isinstance(failure, NoReply) or getattr(failure, "silent", False)
                reason = Unreachable(str(failure), silent)
                server.cannot_connect(reason)
                if not server.is_lost:
                    self._notices.warn_once(
                        f"connect {server.endpoint}",
                        f"store {server.endpoint}: cannot open another connection: {reason}",
                    )
                return
            self._notices.resolve(f"connect {server.endpoint}")
            server.offer(connection)

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

    def _check(self) -> None:
        """Once a second: what time it is there, whether it still knows the scripts, what nothing uses."""
        self._server.tidy()
        self._control.exchange(hear_time(self._server.clock))
        if not self._server.scripts_are_loaded:
            self._publisher.publish(self._server, self._control)
        else:
            self._publisher.publish_if_flushed(self._server, self._control)

    def _heal(self) -> None:
        server = self._server
        try:
            self._probe()
            self._publisher.publish(server, self._control)
        except Failure as failure:
            server.breaker.explain(failure)
            self._control.hang_up()
            self._probing.fail()
            if isinstance(failure, Moved):
                self._look_around()
            return
        server.breaker.close()
        self._connecting.until = 0.0

    def _probe(self) -> None:
        """The real script, writing, within the budget."""
        server = self._server
        key = self._probe_key(server)
        if key is None:
            raise Refused("it has no slots")
        self._control.hang_up()
        self._control.connect()  # which may take longer
        request = ["take", 1, wire_limit(PROBE), 1]
        waiting = Budget(self._budget)
        reply = self._control.exchange(
            acquire(server.clock, [key], request, None, waiting), self._budget
        )
        if not isinstance(reply[1], list):
            raise Refused(f"a probe failed: {reply[1]!r}")

    def _settles_more(self) -> bool:
        """One step of charging what was admitted here; whether there is more."""
        server = self._server
        if server.is_lost or not self._fallback.owes():
            return False
        # First of all: what is taken off the books and cannot be sent would be lost.
        if not self._watched(self._control.connect):
            return False
        seconds = server.patience  # what comes too late is lost, and nobody waits
        step = self._fallback.settle(
            server.clock, lambda key: self._belongs(server, key), self._slot_of, seconds
        )
        if step is None:
            return False
        exchanges, admitted = step
        settled = self._watched(lambda: self._control.exchange_all(exchanges, seconds))
        if settled:
            self._count("settled", admitted)
        return settled and not server.is_lost

    def _watched(self, work: Callable[[], object], decides: bool = False) -> bool:
        """Whether it went well. `decides`: a call waits for the server too, so silence here is the server's."""
        server = self._server
        try:
            work()
        except Moved:
            self._look_around()
        except BadCounter:
            pass
        except NoReply as failure:
            if decides:
                server.breaker.is_checked = server.breaker.is_suspect = False
            server.breaker.note(failure, self._control.sent)
        except Unreachable as failure:
            server.cannot_connect(failure)
        except Refused as failure:
            if "NOPERM" not in str(failure):
                server.breaker.open(failure)
        else:
            return True
        return False


def _probe_meter() -> Meter:
    return meter_from_limit("probe", Limit(1_000_000, 1_000_000), algorithms()["TB"], {})


PROBE = _probe_meter()
