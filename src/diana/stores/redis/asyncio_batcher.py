"""How tasks of an event loop share connections: what they ask in one iteration of the loop travels together.

Several calls are under way at once. No task waits for others: requests are sent in the loop's next iteration, and later ones do not wait
for the reply. The loop only sends and receives without blocking; a background thread has opened the connection. Each loop has its own
connections.

Time is measured on a clock that stands still while the loop is held up: a delay of this process is not a delay of the server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

from diana.redis_client.circuit_breaker import Breaker
from diana.redis_client.connection import NOTHING_YET, Connection
from diana.redis_client.connection_pool import ConnectionPool
from diana.redis_client.reply_errors import (
    BudgetExceeded,
    Failure,
    NoConnection,
    UnknownOutcome,
)
from diana.redis_client.time_budget import LATE, SLICES, Budget
from diana.stores.redis.in_flight_call import AnswerFuture, InFlightCall, resolve
from diana.stores.redis.protocol.batch import (
    DENIED_MEANWHILE,
    MOST_COUNTERS,
    Batch,
    DecisionRequest,
    groups_of,
)
from diana.stores.redis.protocol.commands import Exchange, pack
from diana.stores.redis.protocol.server_clock import ServerClock

WINDOW = 4 * MOST_COUNTERS
"""Counters under way at once: the server never waits for us, nor we for a long queue there."""


class AsyncioBatcher:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: ConnectionPool,
        breaker: Breaker,
        clock: ServerClock,
        want_connection: Callable[[], None],
        count: Callable[..., None],
        slot_of: Callable[[bytes], int] | None,
        is_denied: Callable[[list[bytes]], bool],
        budget: float,
        pass_on: Callable[[], None],
    ) -> None:
        """`pass_on`: a connection is in the pool that this loop does not need; another may."""
        self.loop = loop
        self._pool = pool
        self._breaker = breaker
        self._clock = clock
        self._want_connection = want_connection
        self._count = count
        self._slot_of = slot_of
        self._is_denied = is_denied
        self._interval = budget / SLICES
        self._pass_on = pass_on
        self._is_told = False
        """That a connection is ready; it has not looked yet."""
        self._connection: Connection | None = None
        self._asks: deque[tuple[DecisionRequest, float]] = deque()
        self._exchanges: deque[tuple[Exchange, AnswerFuture, float]] = deque()
        self._calls: deque[InFlightCall] = deque()
        self._counters = 0
        """Of the calls under way."""
        self._unsent = b""
        self._flush_due = 0.0
        """When a flush was asked for; 0: none was."""
        self._tick: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._held_up = 0.0
        """Seconds for which the loop was late, so far."""

    def now(self) -> float:
        return monotonic() - self._held_up

    def __bool__(self) -> bool:
        """Whether it waits for a connection."""
        return self._connection is None and bool(self._asks or self._exchanges)

    def ask(self, ask: DecisionRequest, budget: Budget) -> AnswerFuture:
        """What the script says to one request, or a Failure."""
        answer = ask.waits = self.loop.create_future()
        self._asks.append((ask, monotonic() - self._held_up + budget.left))
        if not self._flush_due:
            self._flush_soon()
        return answer

    def exchange(self, steps: Exchange, budget: Budget) -> AnswerFuture:
        """What an exchange comes to, or a Failure."""
        answer = self.loop.create_future()
        self._exchanges.append((steps, answer, self.now() + budget.left))
        if not self._flush_due:
            self._flush_soon()
        return answer

    def wants_notice(self) -> bool:
        """Whether it waits for a connection and was not told yet of one. If it was not, it is as good as told."""
        if self._is_told or not self or self.loop.is_closed():
            return False
        self._is_told = True
        return True

    def claim(self) -> None:
        """A connection may be ready in the pool. Called in the loop."""
        self._is_told = False
        connection = self._pool.take(for_ever=True) if self else None
        if connection is None:
            if not self and not self._pool.is_empty:
                self._pass_on()
            return
        self._use(connection)

    def _use(self, connection: Connection) -> None:
        if self.loop.is_closed():
            self._pool.give(connection)
            return
        connection.socket.settimeout(0)
        self._connection = connection
        self.loop.add_reader(connection.socket, self._readable)
        self._flush()

    def close(self) -> None:
        """The store was closed: what is under way has an unknown outcome."""
        self._drop_connection()
        self._fail_calls(UnknownOutcome("the store was closed"))
        self.drain(NoConnection("the store was closed"))

    def drain(self, failure: NoConnection) -> None:
        """Nothing more is sent; what is under way may still be answered."""
        if not self._calls:
            self._drop_connection()
        while self._exchanges:
            steps, answer, _ = self._exchanges.popleft()
            steps.close()
            resolve(answer, failure)
        while self._asks:
            resolve(self._asks.popleft()[0].waits, failure)

    def reclaim(self) -> None:
        """The loop is closed: another may use its connection."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._calls or self._unsent or connection.is_stale():
            self._pool.drop(connection)
        else:
            self._pool.give(connection)

    def abandon(self) -> None:
        """In a forked child. The loop is not told: what it watches, it watches for the parent too."""
        self._connection = None

    def _flush_soon(self) -> None:
        self._flush_due = monotonic()
        self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what waits, as far as the window goes."""
        if self._flush_due:
            # Until now the loop was busy with its tasks. That is not the server's time.
            self._held_up += monotonic() - self._flush_due
            self._flush_due = 0.0
        if self._connection is None and not self._connect():
            return
        while self._exchanges and self._connection is not None:
            steps, answer, deadline = self._exchanges.popleft()
            call = InFlightCall(deadline, 1, None, answer)
            call.steps = steps
            self._advance(call, None)
        while self._asks and self._counters < WINDOW and self._connection is not None:
            self._start_batches()

    def _connect(self) -> bool:
        """Whether there is a connection at once."""
        if self._breaker.is_open or self._pool.is_closed:
            self.drain(NoConnection("the store is unreachable"))
            return False
        connection = self._pool.take(for_ever=True)
        if connection is None:
            self._arm()
            self._want_connection()
            return False
        self._use(connection)
        return False  # it has flushed

    def _start_batches(self) -> None:
        """As many of the requests that wait as the window takes."""
        room = WINDOW - self._counters
        asks: list[DecisionRequest] = []
        deadline = self._asks[0][1]
        queued = bool(self._calls)
        while self._asks and room > 0:
            ask = self._asks.popleft()[0]
            if queued and not ask.is_final and self._is_denied(ask.keys):
                resolve(ask.waits, DENIED_MEANWHILE)
                continue
            asks.append(ask)
            room -= len(ask.keys)
        if not asks:
            return
        # The oldest has waited longest; what is sent has a budget of its own left, measured from sending.
        left = Budget(max(deadline - self.now(), self._interval))
        for group in groups_of(asks, self._slot_of):
            if self._connection is None:
                failure = NoConnection("the connection broke")
                for ask in group:
                    resolve(ask.waits, failure)
                continue
            counters = sum([len(ask.keys) for ask in group])
            batch = Batch(group, self._clock, left)
            self._begin(
                InFlightCall(self.now() + left.left, counters, batch, None), pack(batch.words())
            )

    def _advance(self, call: InFlightCall, reply: Any) -> None:
        """The next command of an exchange, or its end."""
        if call.steps is None and call.batch is not None:
            said = call.batch.read(reply)
            if said is not None:
                self._breaker.answered()
                call.resolve_batch(said)
                return
            call.steps, reply = call.batch.go_on(reply), None
        steps = cast(Exchange, call.steps)
        try:
            command = steps.send(reply)
        except StopIteration as end:
            self._breaker.answered()
            call.resolve(end.value)
        except UnknownOutcome as failure:
            call.resolve(failure)
            self._break(failure, call.sent)
        except Failure as failure:
            call.resolve(failure)
            self._breaker.note(failure, call.sent)
        else:
            call.replies = command.replies
            self._begin(call, command.packed())

    def _begin(self, call: InFlightCall, packed: bytes) -> None:
        """Send, and wait for the reply."""
        self._count("trips")
        call.sent = monotonic()
        self._calls.append(call)
        self._counters += call.counters
        if self._tick is None:
            self._arm()
        self._send(packed)

    def _send(self, packed: bytes) -> None:
        connection = self._connection
        if connection is None:
            return
        if self._unsent:
            self._unsent += packed
            return
        try:
            sent = connection.socket.send(packed)
        except NOTHING_YET:
            sent = 0
        except OSError as error:
            self._break(UnknownOutcome(f"the connection broke: {error}"), monotonic())
            return
        if sent < len(packed):
            self._unsent = packed[sent:]
            self.loop.add_writer(connection.socket, self._writable)

    def _writable(self) -> None:
        if self._connection is None:
            return
        self.loop.remove_writer(self._connection.socket)
        packed, self._unsent = self._unsent, b""
        self._send(packed)

    def _readable(self) -> None:
        """Hand out what has arrived, and send on."""
        if self._connection is None:
            return
        self._count_lateness()
        try:
            replies = self._connection.read_arrived()
        except UnknownOutcome as failure:
            if self._calls:
                self._break(failure, self._calls[0].sent)
            else:
                self._drop_connection()  # an idle connection was closed
                self._flush()
            return
        for reply in replies:
            if not self._calls:
                self._drop_connection()  # a reply to nothing: it was said twice
                break
            call = self._calls[0]
            call.replies -= 1
            if not call.replies:
                self._calls.popleft()
                self._counters -= call.counters
                self._advance(call, reply)
        if self._asks:
            self._flush()
        elif self._breaker.is_open and not self._calls:
            self._drop_connection()

    def _arm(self) -> None:
        """Look again soon; one timer watches over all."""
        if self._tick is not None:
            return
        waits = [line[0][-1] for line in (self._asks, self._exchanges) if line]
        if self._calls:
            waits.append(self._calls[0].deadline)
        if not waits:
            return
        seconds = min(self._interval, max(0.001, min(waits) - self.now()))
        self._tick_due = monotonic() + seconds
        self._tick = self.loop.call_later(seconds, self._look)

    def _count_lateness(self) -> None:
        if self._tick is not None:
            late = monotonic() - self._tick_due
            if late > LATE:
                # What this loop has lost, the thread that opens its connection may have lost, too.
                self._held_up += 2 * late if self else late
                self._tick_due += late

    def _look(self) -> None:
        """Is the oldest too late? Before anything is given up, what has arrived is read."""
        self._count_lateness()
        self._tick = None
        if self._calls and self._calls[0].deadline - self.now() <= 2 * self._interval:
            self._breaker.suspect(self._calls[0].sent)
        if self._calls and self._calls[0].deadline <= self.now():
            self._readable()
        if self._calls and self._calls[0].deadline <= self.now():
            self._break(BudgetExceeded(), self._calls[0].sent)
        now = self.now()
        for line in (self._exchanges, self._asks):
            while line and line[0][-1] <= now:
                failure = NoConnection("no connection was free within the budget")
                late = line.popleft()
                resolve(late[0].waits if isinstance(late[0], DecisionRequest) else late[1], failure)
                if not len(self._pool):
                    self._breaker.note_no_connection(failure)
        if self:
            self.claim()  # one that another has given back
        self._arm()

    def _break(self, failure: UnknownOutcome, sent: float) -> None:
        """What is under way has failed; what waits may yet be sent on another connection."""
        self._drop_connection()
        self._breaker.note(failure, sent)
        self._fail_calls(failure)
        if self._asks or self._exchanges:
            self._flush_soon()
        else:
            self._want_connection()

    def _fail_calls(self, failure: Failure) -> None:
        calls, self._calls = self._calls, deque()
        self._counters = 0
        for call in calls:
            call.close()
            call.resolve(failure)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        self._unsent = b""
        if connection is not None:
            if not self.loop.is_closed():
                self.loop.remove_reader(connection.socket)
                self.loop.remove_writer(connection.socket)
            self._pool.drop(connection)
