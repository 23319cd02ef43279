"""How threads ask one server: what they ask at once travels together.

A thread that finds a free connection takes all that waits along with its own request, sends, receives, and hands out the replies. One that
finds none waits in line; a connection that becomes free goes to the first in line, who does the same. So a thread works for others only
while it works for itself, a few connections serve any number of threads, and no lock is held across I/O.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from diana.redis_client.circuit_breaker import Breaker
from diana.redis_client.connection import Connection
from diana.redis_client.connection_pool import FOR_THREADS, ConnectionPool
from diana.redis_client.reply_errors import (
    BudgetExceeded,
    Failure,
    NoConnection,
    ServerRefused,
    UnknownOutcome,
)
from diana.redis_client.time_budget import Budget
from diana.stores.redis.protocol.batch import (
    DENIED_MEANWHILE,
    MOST_COUNTERS,
    Batch,
    DecisionRequest,
    answer_of,
    groups_of,
)
from diana.stores.redis.protocol.commands import Acquire, Exchange, pack
from diana.stores.redis.protocol.server_clock import ServerClock

UNANSWERED: Any = object()
HANDOVER_SECONDS = 1.0
"""Between two lines of the thread that hands a connection over; it may stand still there."""


class Waiter:
    """A thread in line."""

    __slots__ = ("_place", "answer", "ask", "connection", "wake")

    def __init__(self, ask: DecisionRequest | None) -> None:
        self.ask = ask
        """None: it wants a connection for itself."""
        if ask is not None:
            ask.waits = self
        self.connection: Connection | None = None
        self.answer = UNANSWERED
        self._place: list[None] = [None]
        """Taken out, in one step, by a connection that is handed over, or by the thread when it leaves: by one of them only."""
        # By its name in the module, so that a library that patches threading after us is heeded.
        self.wake = threading.Lock()
        self.wake.acquire()

    def resolve(self, answer: Any) -> None:
        self.answer = answer
        self.wake.release()

    def hand_over(self, connection: Connection) -> bool:
        """Whether the thread is still there to take it."""
        if not self._take_place():
            return False
        self.connection = connection
        self.wake.release()
        return True

    def leave(self) -> bool:
        """Whether no connection was handed over, nor will be."""
        return self._take_place()

    @property
    def has_left(self) -> bool:
        return not self._place

    def _take_place(self) -> bool:
        try:
            self._place.pop()
        except IndexError:
            return False
        return True


class ThreadBatcher:
    def __init__(
        self,
        pool: ConnectionPool,
        breaker: Breaker,
        clock: ServerClock,
        want_connection: Callable[[], None],
        count: Callable[..., None],
        slot_of: Callable[[bytes], int] | None,
        is_denied: Callable[[list[bytes]], bool],
    ) -> None:
        self._pool = pool
        self._breaker = breaker
        self._clock = clock
        self._want_connection = want_connection
        self._count = count
        self._slot_of = slot_of
        self._is_denied = is_denied
        self._line: deque[Waiter] = deque()

    def __bool__(self) -> bool:
        """Whether any thread waits."""
        return bool(self._line)

    def ask(self, ask: DecisionRequest, budget: Budget) -> Any:
        """What the script says to one request, or a Failure."""
        connection = None if self._line else self._pool.take()
        if connection is None:
            waiter = Waiter(ask)
            connection = self._wait(waiter, budget)
            if connection is None:
                return waiter.answer
        if self._line:
            return self._lead(ask, connection, budget)
        return self._ask_alone(ask, connection, budget)

    def exchange(self, exchanges: Sequence[Exchange], budget: Budget) -> Callable[[], list[Any]]:
        """Send the first command of each on a connection of their own; what is returned reads the answers. Failure if none is to be had."""
        connection = None if self._line else self._pool.take()
        if connection is None:
            waiter = Waiter(None)
            connection = self._wait(waiter, budget)
            if connection is None:
                raise waiter.answer
        self._count("trips", len(exchanges))
        sent = monotonic()
        try:
            commands = connection.begin(exchanges, budget)
        except BaseException as error:
            self._fail(connection, sent, error)
            raise

        def finish() -> list[Any]:
            try:
                answers = connection.finish(exchanges, commands, budget)
            except UnknownOutcome as failure:
                self._fail(connection, sent, failure)
                return [failure] * len(exchanges)
            except BaseException as error:
                self._fail(connection, sent, error)
                raise
            self._succeed(connection, answers)
            return answers

        return finish

    def serve(self) -> None:
        """Give free connections to those who are first in line."""
        line, pool = self._line, self._pool
        while line and not pool.is_empty:
            connection = pool.take()
            if connection is None:
                return
            try:
                waiter = line.popleft()
            except IndexError:
                pool.give(connection)
                continue
            if not waiter.hand_over(connection):
                pool.give(connection)

    def fail_all(self, failure: Failure) -> None:
        """No connection will come: the breaker is open, or the store closed."""
        while self._line:
            try:
                self._line.popleft().resolve(failure)
            except IndexError:
                return

    def _wait(self, waiter: Waiter, budget: Budget) -> Connection | None:
        """A connection; None if the waiter was answered instead."""
        self._line.append(waiter)
        if not self._pool.is_empty:
            self.serve()
        if self._breaker.is_open or self._pool.is_closed:
            self.fail_all(NoConnection("the store is unreachable"))
        elif self._pool.opened < FOR_THREADS:
            self._want_connection()
        try:
            if not budget.wait(waiter.wake, self._want_connection):
                self._give_up(waiter)
        except BaseException:
            self._leave(waiter)
            raise
        return waiter.connection

    def _give_up(self, waiter: Waiter) -> None:
        try:
            self._line.remove(waiter)
        except ValueError:
            if not waiter.leave():
                waiter.wake.acquire(timeout=HANDOVER_SECONDS)
            elif waiter.answer is UNANSWERED:
                waiter.answer = BudgetExceeded()  # its request is on its way with another thread's
            return
        failure = NoConnection("no connection was free within the budget")
        waiter.answer = failure
        if not len(self._pool):
            self._breaker.note_no_connection(failure)

    def _leave(self, waiter: Waiter) -> None:
        """Struck by a signal handler's exception while in line: a connection that was handed over goes on to the next."""
        try:
            self._line.remove(waiter)
        except ValueError:
            if waiter.leave():
                return
            waiter.wake.acquire(timeout=HANDOVER_SECONDS)
            if waiter.connection is not None:
                self._pool.give(waiter.connection)
                self.serve()

    def _ask_alone(self, ask: DecisionRequest, connection: Connection, budget: Budget) -> Any:
        """What `_lead` does when nothing else waits, with as few steps as that takes."""
        sent = 0.0
        try:
            call = Acquire(self._clock, ask.keys, ask.argv, ask.now, budget)
            packed = pack(call.words())
            self._count("trips")
            sent = monotonic()
            reply = connection.request(packed, budget)
            answer = call.read(reply)
            if answer is None:
                answer = connection.go_on(call.go_on(reply), None, budget)
        except BaseException as error:
            self._fail(connection, sent, error)
            if isinstance(error, Failure):
                return error
            raise
        self._succeed(connection, (answer,))
        return answer_of(1, answer)

    def _lead(self, ask: DecisionRequest, connection: Connection, budget: Budget) -> Any:
        """Ask for this thread and for others that wait, as many as may travel together."""
        asks = [ask]
        sent = 0.0
        try:
            self._join(asks)
            if self._slot_of is None or len(asks) == 1:
                batches = [Batch(asks, self._clock, budget)]
                packed = pack(batches[0].words())
            else:
                groups = groups_of(asks, self._slot_of)
                batches = [Batch(group, self._clock, budget) for group in groups]
                packed = b"".join([pack(batch.words()) for batch in batches])
            self._count("trips", len(batches))
            sent = monotonic()
            answers = connection.decide(batches, packed, budget)
        except BaseException as error:
            self._disband(asks, sent, error)
            self._fail(connection, sent, error)
            if isinstance(error, Failure):
                return error
            raise
        self._succeed(connection, answers)
        return _hand_out(batches, answers, ask)

    def _join(self, asks: list[DecisionRequest]) -> None:
        """Add those in line whose requests fit into the same call."""
        line, ask, counters = self._line, asks[0], len(asks[0].keys)
        while line:
            try:
                waiter = line.popleft()
            except IndexError:
                return
            its = waiter.ask
            if waiter.has_left:
                continue
            if its is None or its.now != ask.now or counters + len(its.keys) > MOST_COUNTERS:
                line.appendleft(waiter)
                return
            if not its.is_final and self._is_denied(its.keys):
                waiter.resolve(DENIED_MEANWHILE)
            else:
                asks.append(its)
                counters += len(its.keys)

    def _disband(self, asks: list[DecisionRequest], sent: float, error: BaseException) -> None:
        """What was not sent waits again; what was, is of unknown outcome. The first is this thread's own."""
        waiters = [ask.waits for ask in asks[1:]]
        if not sent:
            self._line.extendleft(reversed(waiters))
            return
        interrupted = UnknownOutcome("the thread that asked was interrupted")
        for waiter in waiters:
            waiter.resolve(error if isinstance(error, Failure) else interrupted)

    def _succeed(self, connection: Connection, answers: Sequence[Any]) -> None:
        breaker = self._breaker
        breaker.answered()
        for answer in answers:
            if answer.__class__ is not list and isinstance(answer, ServerRefused):
                breaker.open(answer)
        if breaker.is_open:
            self._pool.drop(connection)
            return
        self._pool.give(connection)
        if self._line:
            self.serve()

    def _fail(self, connection: Connection, sent: float, error: BaseException) -> None:
        """In the middle of a reply: the next would read the rest of it."""
        self._pool.drop(connection)
        self._breaker.note(error, sent)
        if not self._breaker.is_open:
            self._want_connection()


def _hand_out(batches: Sequence[Batch], answers: Sequence[Any], mine: DecisionRequest) -> Any:
    """Each thread its own; gives this one's."""
    found = UNANSWERED
    for batch, answer in zip(batches, answers, strict=True):
        for place, ask in enumerate(batch.asks, 1):
            if ask is mine:
                found = answer_of(place, answer)
            else:
                ask.waits.resolve(answer_of(place, answer))
    return found
