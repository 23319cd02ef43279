"""The thread of one server: a server that is frozen delays no request that needs another server, and no other server's recovery.

It finds out whether a server that does not reply has fallen silent, and loads the scripts. While the breaker is open it probes the server
with the real script and closes the breaker; then it settles, in small steps, what was counted here meanwhile. Another thread, the opener,
opens connections, which may take long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import Any

from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.redis_client.circuit_breaker import FAILING_SECONDS
from diana.redis_client.connection import Connection
from diana.redis_client.handshake import CONNECT_SECONDS
from diana.redis_client.redis_server import Server
from diana.redis_client.reply_errors import (
    BadCounter,
    Failure,
    Moved,
    ServerRefused,
    UnknownOutcome,
    Unreachable,
)
from diana.redis_client.thread_connection import ThreadConnection
from diana.redis_client.time_budget import Budget
from diana.runtime.background_thread import (
    LONGEST_PAUSE,
    BackOff,
    Wakeup,
    join_thread,
    start_thread,
)
from diana.runtime.entry_points import algorithms
from diana.runtime.throttled_log import ThrottledLog
from diana.stores.redis.local_fallback import Fallback
from diana.stores.redis.maintenance.connection_opener import Opener
from diana.stores.redis.maintenance.script_publisher import Publisher
from diana.stores.redis.maintenance.silence import silence_budget
from diana.stores.redis.pending_refunds import PendingRefunds
from diana.stores.redis.protocol.commands import acquire, hear_time
from diana.stores.redis.protocol.scripts import wire_limit

log = logging.getLogger("diana")
CHECK_SECONDS = 1.0
LEAST_REPLY_SECONDS = 0.2


class Reconnector:
    def __init__(
        self,
        server: Server,
        publisher: Publisher,
        fallback: Fallback,
        refunds: PendingRefunds,
        budget: float,
        probe_key: Callable[[Server], bytes | None],
        belongs: Callable[[Server, bytes], bool],
        slot_of: Callable[[bytes], int],
        look_around: Callable[[], None],
        count: Callable[..., None],
        notices: ThrottledLog,
    ) -> None:
        self._server = server
        self._publisher = publisher
        self._fallback = fallback
        self._refunds = refunds
        self._refunding = BackOff()
        self._budget = budget
        self._probe_key = probe_key
        self._belongs = belongs
        self._slot_of = slot_of
        self._look_around = look_around
        self._count = count
        self._notices = notices
        self._silence_budget = silence_budget(server.breaker, budget)
        # A reply that is lost holds this thread up no longer than it must.
        self._control = ThreadConnection(
            server, max(LEAST_REPLY_SECONDS, 2 * budget), self._silence_budget
        )
        self._longest_silence = FAILING_SECONDS + budget
        self._wakeup = Wakeup()
        self._is_closed = False
        self._probing = BackOff()
        self._next_check = 0.0
        self._opener = Opener(server, notices)
        self._thread: Thread | None = None

    def ensure(self) -> None:
        """Start what does not run yet: the system may have had no room for another thread."""
        if self._thread is None and not self._is_closed:
            self._thread = start_thread(self._work, "diana-connector", self._notices)
        self._opener.ensure()

    def wake(self) -> None:
        self._wakeup.wake()
        self._opener.wake()

    def stop(self) -> None:
        self._is_closed = True
        self._opener.stop()
        self.wake()

    def join(self, seconds: float) -> None:
        end = monotonic() + seconds
        for thread in (self._thread, self._opener.thread):
            if thread is not None:
                join_thread(thread, max(0.0, end - monotonic()))

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
        with suppress(Exception):
            self._finish_refunds()
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
        if monotonic() >= self._next_check:
            self._next_check = monotonic() + CHECK_SECONDS
            self._watched(self._check)
        if self._settles_more() or self._refunds_more():
            return 0.0
        due = self._next_check
        if self._refunds and self._refunding.left > 0:
            due = min(due, self._refunding.until)
        return max(0.001, due - monotonic())

    def _ask_if_alive(self) -> None:
        """A request waits for a reply that does not come: has the server fallen silent, or was one reply lost?

        It is asked on connections that are open already, because opening one takes as long as a frozen server likes. The reply to this
        may be lost, too, so a spare connection of the pool is used beside the connection of this thread.
        """
        pool = self._server.pool
        spare = pool.take()
        if spare is None:
            self._watched(self._hear)
        elif self._watched(lambda: self._hear_beside(spare)):
            self._server.give_back(spare)
        else:
            pool.drop(spare)
        if not self._control.is_connected:
            self._next_check = 0.0  # it is opened again

    def _hear_beside(self, spare: Connection) -> None:
        steps = [hear_time(self._server.clock)]
        commands = spare.begin(steps, Budget(self._budget))
        if not self._control.is_connected:
            spare.finish(steps, commands, self._silence_budget(self._longest_silence))
            return
        try:
            self._hear()
        except UnknownOutcome:
            with suppress(
                UnknownOutcome
            ):  # if something has arrived here, the server is not silent
                spare.finish(steps, commands, Budget(0.0))
            raise
        spare.finish(steps, commands, Budget(self._budget))

    def _hear(self) -> None:
        self._control.exchange(hear_time(self._server.clock), self._longest_silence)

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
        self._opener.begin_anew()

    def _probe(self) -> None:
        """The real script, writing, within the budget."""
        server = self._server
        key = self._probe_key(server)
        if key is None:
            raise ServerRefused("it has no slots")
        self._control.hang_up()
        self._control.connect()  # which may take longer
        request = ["take", 1, wire_limit(PROBE), 1]
        waiting = Budget(self._budget)
        reply = self._control.exchange(
            acquire(server.clock, [key], request, None, waiting), self._budget
        )
        if not isinstance(reply[1], list):
            raise ServerRefused(f"a probe failed: {reply[1]!r}")

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

    def _refunds_more(self) -> bool:
        """One step of the refunds that could not be carried out at once; whether there are more."""
        server, refunds = self._server, self._refunds
        if server.is_lost or not refunds or self._refunding.left > 0:
            return False
        if not self._watched(self._control.connect):
            return False
        attempts = refunds.take(lambda key: self._belongs(server, key))
        if not attempts:
            return False
        waiting = Budget(server.patience)
        exchanges = [attempt.start(server, waiting) for attempt in attempts]
        answers: list[Any] = [UnknownOutcome("no reply came")] * len(attempts)

        def carry_out() -> None:
            answers[:] = self._control.exchange_all(exchanges, server.patience)

        self._watched(carry_out)
        if any(isinstance(answer, Moved) for answer in answers):
            self._look_around()
        done = [refunds.conclude(*one) for one in zip(attempts, answers, strict=True)]
        if not all(done):
            self._refunding.fail()
        return all(done)

    def _finish_refunds(self) -> None:
        """The store is closed: what can be refunded at once, is."""
        end = monotonic() + CONNECT_SECONDS
        self._refunding.until = 0.0
        while self._refunds_more() and monotonic() < end:
            pass

    def _watched(self, work: Callable[[], object]) -> bool:
        """Whether it went well."""
        server = self._server
        try:
            work()
        except Moved:
            self._look_around()
        except BadCounter:
            pass
        except UnknownOutcome as failure:
            server.breaker.note(failure, self._control.sent)
        except Unreachable as failure:
            server.breaker.note_no_second_connection(failure)
            server.cannot_connect(failure)
        except ServerRefused as failure:
            if "NOPERM" not in str(failure):
                server.breaker.open(failure)
        else:
            return True
        return False


def _probe_meter() -> CounterSpec:
    return meter_from_limit("probe", Limit(1_000_000, 1_000_000), algorithms()["TB"], {})


PROBE = _probe_meter()
