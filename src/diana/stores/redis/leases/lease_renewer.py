"""The thread that asks ahead of need, so that no request has to wait for a permit that could be here already.

It also renews leases before they end, gives back what nothing is asked of, and at the end gives back everything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread, current_thread
from typing import Any

from diana.redis_client.redis_server import Server
from diana.redis_client.reply_errors import (
    Failure,
    Moved,
    ProtocolError,
    ServerRefused,
    UnknownOutcome,
    Unreachable,
)
from diana.redis_client.thread_connection import ThreadConnection
from diana.redis_client.time_budget import Budget
from diana.runtime.background_thread import Wakeup, join_thread, start_thread
from diana.runtime.fork import fork_safe_lock
from diana.runtime.throttled_log import ThrottledLog
from diana.stores.redis.leases.lease import Lease
from diana.stores.redis.leases.lease_request import LeaseRequest, WireLimits, ask_pool
from diana.stores.redis.leases.lease_table import LeaseTable

log = logging.getLogger("diana")

LEAST_REPLY_SECONDS = 0.2
LEAVE_SECONDS = 1.0
PAUSE_AFTER_ERROR = 1.0
AT_ONCE = 200
"""Asks sent together to one server."""


class LeaseRenewer:
    table: LeaseTable

    def __init__(
        self,
        limits: WireLimits,
        server_of: Callable[[bytes], Server | None],
        look_around: Callable[[], None],
        budget: float,
        count: Callable[..., None],
    ) -> None:
        self._limits = limits
        self._server_of = server_of
        self._look_around = look_around
        self._seconds = max(LEAST_REPLY_SECONDS, 2 * budget)
        self._count = count
        self._notices = ThrottledLog()
        self._controls: dict[Server, ThreadConnection] = {}
        self._wakeup = Wakeup()
        self._thread: Thread | None = None
        self._starting = fork_safe_lock()
        self._is_closed = False

    def wake(self) -> None:
        """There is something to ask; the first time, begin."""
        if self._thread is None and not self._is_closed:
            with self._starting:
                if self._thread is None:
                    self._thread = start_thread(self._work, "diana-leases", self._notices)
        self._wakeup.wake()

    def stop(self) -> None:
        """Do not wait for it."""
        self._is_closed = True
        self._wakeup.wake()

    def close(self) -> None:
        self.stop()
        thread = self._thread
        if thread is not None and thread is not current_thread():
            join_thread(thread, 2 * LEAVE_SECONDS)

    def abandon(self) -> None:
        """In a forked child: close our copies of what is the parent's."""
        self._is_closed = True
        for control in list(self._controls.values()):
            control.hang_up()

    def _work(self) -> None:
        while not self._is_closed:
            try:
                asks, pause_us = self.table.due()
                self._ask(asks, self._seconds)
                pause = 0.0 if asks else pause_us / 1_000_000
            except Exception:
                log.exception("the thread of leases failed; it goes on")
                pause = PAUSE_AFTER_ERROR
            if pause and not self._is_closed:
                self._wakeup.sleep(pause)
        with suppress(Exception):
            self._ask(self.table.leave(), LEAVE_SECONDS)
        for control in self._controls.values():
            control.hang_up()

    def _ask(self, asks: Sequence[tuple[Lease, LeaseRequest]], seconds: float) -> None:
        by_server: dict[Server, list[tuple[Lease, LeaseRequest]]] = {}
        for lease, ask in asks:
            server = self._server_of(lease.wire_key)
            if server is None or server.is_lost:
                self.table.lose(lease, ask)
            else:
                by_server.setdefault(server, []).append((lease, ask))
        for server, some in by_server.items():
            for first in range(0, len(some), AT_ONCE):
                self._ask_server(server, some[first : first + AT_ONCE], seconds)

    def _ask_server(
        self, server: Server, asks: Sequence[tuple[Lease, LeaseRequest]], seconds: float
    ) -> None:
        exchanges = [
            ask_pool(
                self._limits, server.clock, lease.wire_key, lease.meter, ask, None, Budget(seconds)
            )
            for lease, ask in asks
        ]
        control = self._controls.get(server)
        if control is None:
            control = self._controls[server] = ThreadConnection(server)
        self._count("trips", len(asks))
        self._count("lease_asks", len(asks))
        try:
            answers = control.exchange_all(exchanges, seconds)
        except Failure as failure:
            self._note(server, control, failure)
            answers = [failure] * len(asks)
        for (lease, ask), answer in zip(asks, answers, strict=True):
            self._conclude(server, control, lease, ask, answer)

    def _conclude(
        self,
        server: Server,
        control: ThreadConnection,
        lease: Lease,
        ask: LeaseRequest,
        answer: Any,
    ) -> None:
        if isinstance(answer, Exception):
            self.table.lose(lease, ask)
            if isinstance(answer, Moved):
                self._look_around()
            elif isinstance(answer, ProtocolError):
                self._note(server, control, answer)
            elif isinstance(answer, ServerRefused):
                self._notices.warn_once("leases", f"store {server.endpoint}: {answer}")
            return
        at, grant = answer
        if grant is not None:
            self._count("lease_permits", grant.granted)
        self.table.settle(lease, ask, grant, at)

    def _note(self, server: Server, control: ThreadConnection, failure: Failure) -> None:
        if isinstance(failure, UnknownOutcome):
            server.breaker.note(failure, control.sent)
        elif isinstance(failure, Unreachable):
            server.cannot_connect(failure)
