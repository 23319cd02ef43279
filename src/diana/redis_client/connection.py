"""One connection to one server: a socket and the replies that come from it. Threads and event loops hand it to each other.

A library's own connection would not do: its time-outs count anew with every piece that arrives, so that a server that drips its reply
holds a request as long as it likes; and an event loop needs the socket itself.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any
from weakref import finalize

import hiredis

from diana.redis_client.reply_errors import (
    BudgetExceeded,
    Failure,
    ProtocolError,
    UnknownOutcome,
)
from diana.redis_client.time_budget import Budget
from diana.stores.redis.protocol.batch import Batch
from diana.stores.redis.protocol.commands import Command, Exchange

PIECE = 1 << 14
EARLY_SECONDS = 0.002
NOTHING_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    def __init__(self, ready: socket.socket, hear: Callable[[float], None]) -> None:
        """`hear` is called with the monotonic time whenever the server says something."""
        self.socket = ready
        self._await = _await_of(ready)
        # Should it be lost between two lines, to a signal handler that raised.
        finalize(self, ready.close)
        self._reader = hiredis.Reader()
        self._hear = hear
        self.suspect: Callable[[float], None] = lambda _: None
        """Called with the time of sending when half a request's budget is over and nothing has arrived."""
        self._sent = 0.0
        self.idle_since = 0.0
        self.taken_at = 0.0
        """When a thread took it; infinity if an event loop keeps it."""

    def has_more(self) -> bool:
        """More has arrived with the last reply than was asked for."""
        return bool(self._reader.has_data())

    def is_stale(self) -> bool:
        """Something to read where nothing was asked: the server has closed it, or said something twice."""
        if self._reader.has_data():
            return True
        try:
            if self._await is None:
                self.socket.settimeout(0)
            self.socket.recv(1)
        except NOTHING_YET:
            return False
        except OSError as error:
            _reraise_foreign(error)
        return True

    def exchange(self, steps: Exchange, budget: Budget) -> Any:
        """What an exchange comes to."""
        (answer,) = self.finish([steps], self.begin([steps], budget), budget)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def begin(self, exchanges: Sequence[Exchange], budget: Budget) -> list[Command]:
        """Send the first command of each."""
        commands = [next(steps) for steps in exchanges]
        self._send(b"".join(command.packed() for command in commands), budget)
        return commands

    def finish(
        self, exchanges: Sequence[Exchange], commands: Sequence[Command], budget: Budget
    ) -> list[Any]:
        """What exchanges come to whose first commands were sent, in this order; a failure is one, too, but UnknownOutcome is raised."""
        replies = [self._receive(command.replies, budget) for command in commands]
        return [
            self.go_on(steps, reply, budget)
            for steps, reply in zip(exchanges, replies, strict=True)
        ]

    def decide(self, batches: Sequence[Batch], packed: bytes, budget: Budget) -> list[Any]:
        """What the script says to each batch; a failure is an answer too, but UnknownOutcome is raised."""
        self._send(packed, budget)
        answers: list[Any] = [self._receive(1, budget) for _ in batches]
        for place, batch in enumerate(batches):
            reply = answers[place]
            answer = batch.read(reply)
            if answer is None:
                answer = self.go_on(batch.go_on(reply), None, budget)
            answers[place] = answer
        return answers

    def request(self, packed: bytes, budget: Budget) -> Any:
        """The reply to one command."""
        self._send(packed, budget)
        try:
            self._reader.feed(self._piece(budget))
            reply = self._reader.gets()
        except hiredis.ProtocolError as error:
            raise ProtocolError(f"unexpected reply: {error}") from None
        return reply if reply is not False else self._receive(1, budget)

    def go_on(self, steps: Exchange, reply: Any, budget: Budget) -> Any:
        """What an exchange comes to from this reply on (None: it was not begun); a failure is one, too, but UnknownOutcome is raised."""
        try:
            while True:
                command = steps.send(reply)
                self._send(command.packed(), budget)
                reply = self._receive(command.replies, budget)
        except StopIteration as end:
            return end.value
        except UnknownOutcome:
            raise
        except Failure as failure:
            return failure

    def read_arrived(self) -> list[Any]:
        """All replies that have arrived, without waiting: for event loops. UnknownOutcome once the connection is broken."""
        replies: list[Any] = []
        reader = self._reader
        try:
            piece = self.socket.recv(PIECE)
            self._hear(monotonic())
            while piece:
                reader.feed(piece)
                while (reply := reader.gets()) is not False:
                    replies.append(reply)
                if len(piece) < PIECE and not getattr(self.socket, "pending", int)():
                    return replies
                piece = self.socket.recv(PIECE)
        except NOTHING_YET:
            return replies
        except OSError as error:
            _reraise_foreign(error)
            raise UnknownOutcome(f"the connection broke: {error}") from None
        except hiredis.ProtocolError as error:
            raise ProtocolError(f"unexpected reply: {error}") from None
        if replies:
            return replies  # that it was closed afterwards is found next time
        raise UnknownOutcome("the server has closed the connection")

    def close(self) -> None:
        self.socket.close()

    def _send(self, packed: bytes, budget: Budget) -> None:
        self._sent = began = monotonic()
        if self._await is not None:
            try:
                sent = self.socket.send(packed)
            except NOTHING_YET:
                sent = 0
            except OSError as error:
                _reraise_foreign(error)
                raise UnknownOutcome(f"the connection broke: {error}") from None
            if sent == len(packed):
                return
            packed = packed[sent:]
        seconds = max(0.0005, budget.left)
        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(packed)
            if self._await is not None:
                self.socket.settimeout(0)
        except OSError as error:
            raise _failure(error, began + seconds) from None

    def _receive(self, replies: int, budget: Budget) -> Any:
        """The next reply; of several (to ASKING, and to what it goes before) the last."""
        reader = self._reader
        try:
            while True:
                reply = reader.gets()
                if reply is not False:
                    if replies == 1:
                        return reply
                    replies -= 1
                    continue
                reader.feed(self._piece(budget))
        except hiredis.ProtocolError as error:
            raise ProtocolError(f"unexpected reply: {error}") from None

    def _piece(self, budget: Budget) -> bytes:
        """What has arrived, at least a byte."""
        while True:
            began, seconds = monotonic(), budget.slice()
            piece = None
            if self._await is None:
                piece = self._piece_in_time(seconds)
            elif self._await(seconds * 1_000):
                piece = self._piece_at_once()
            ended = monotonic()
            budget.spend(ended - began)
            if piece is not None:
                self._hear(ended)
                if not piece:
                    raise UnknownOutcome("the server has closed the connection")
                return piece
            if budget.is_half_spent():
                self.suspect(self._sent)
            if budget.is_spent():
                return self._last_look(budget)

    def _piece_at_once(self) -> bytes | None:
        """What has arrived; None if nothing has."""
        try:
            return self.socket.recv(PIECE)
        except NOTHING_YET:
            return None
        except OSError as error:
            _reraise_foreign(error)
            raise UnknownOutcome(f"the connection broke: {error}") from None

    def _piece_in_time(self, seconds: float) -> bytes | None:
        due = monotonic() + seconds
        try:
            self.socket.settimeout(seconds)
            return self.socket.recv(PIECE)
        except OSError as error:
            failure = _failure(error, due)
            if failure.__class__ is not BudgetExceeded:
                raise failure from None
            return None

    def _last_look(self, budget: Budget) -> bytes:
        """Before anything is given up, what has arrived is read: it may be this process that is late."""
        if self._await is None:
            self.socket.settimeout(0)
        piece = self._piece_at_once()
        if piece is None:
            raise BudgetExceeded(budget.proves_silence())
        self._hear(monotonic())
        if not piece:
            raise UnknownOutcome("the server has closed the connection")
        return piece


def _await_of(ready: socket.socket) -> Callable[[float], Any] | None:
    """How to wait, so many ms, for something to read from a plain socket, which then never blocks by itself: half the system calls, and
    so half the occasions for another thread to take the interpreter. None for others: of TLS, of gevent."""
    if ready.__class__.__module__ != "socket" or not hasattr(select, "poll"):
        return None
    ready.settimeout(0)
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    return poll.poll


def _failure(error: OSError, due: float) -> Exception:
    """`due`: when the socket's own time-out would strike; one that comes earlier is a signal handler's."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return error if monotonic() < due - EARLY_SECONDS else BudgetExceeded()
    return UnknownOutcome(f"the connection broke: {error}")


def _reraise_foreign(error: OSError) -> None:
    """A socket that does not wait has no time-out to strike: this one is a signal handler's."""
    if isinstance(error, TimeoutError) and error.errno is None:
        raise error
