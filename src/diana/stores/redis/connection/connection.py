"""One connection to one server: a socket and the replies that come from it. Threads and event loops hand it to each other.

A library's own connection would not do: its time-outs count anew with every piece that arrives, so that a server that drips its reply
holds a request as long as it likes; and an event loop needs the socket itself.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any
from weakref import finalize

import hiredis

from diana.stores.redis.connection.budget import Budget
from diana.stores.redis.protocol.commands import Command, Exchange
from diana.stores.redis.protocol.failures import Failure, Nonsense, NoReply, Overrun

PIECE = 1 << 16
EARLY_SECONDS = 0.002
NOTHING_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    def __init__(self, ready: socket.socket, hear: Callable[[float], None]) -> None:
        """`hear` is called with the monotonic time whenever the server says something."""
        self.socket = ready
        # Should it be lost between two lines, to a signal handler that raised.
        finalize(self, ready.close)
        self._reader = hiredis.Reader()
        self._hear = hear
        self.suspect: Callable[[float], None] = lambda _: None
        """Called with the time of sending when half the budget is over and nothing has arrived."""
        self._sent = 0.0
        self.idle_since = 0.0
        self.taken_at = 0.0
        """When a thread took it; infinity if an event loop keeps it."""

    def is_stale(self) -> bool:
        """Something to read where nothing was asked: the server has closed it, or said something twice."""
        if self._reader.has_data():
            return True
        try:
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
        """What exchanges come to whose first commands were sent, in this order; a failure is an answer too, but NoReply is raised."""
        replies = [self._receive(command.replies, budget) for command in commands]
        answers: list[Any] = []
        for steps, reply in zip(exchanges, replies, strict=True):
            try:
                while True:
                    command = steps.send(reply)
                    self._send(command.packed(), budget)
                    reply = self._receive(command.replies, budget)
            except StopIteration as end:
                answers.append(end.value)
            except NoReply:
                raise
            except Failure as failure:
                answers.append(failure)
        return answers

    def read_arrived(self) -> list[Any]:
        """All replies that have arrived, without waiting: for event loops. NoReply once the connection is broken."""
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
            raise NoReply(f"the connection broke: {error}") from None
        except hiredis.ProtocolError as error:
            raise Nonsense(f"unexpected reply: {error}") from None
        if replies:
            return replies  # that it was closed afterwards is found next time
        raise NoReply("the server has closed the connection")

    def close(self) -> None:
        self.socket.close()

    def _send(self, packed: bytes, budget: Budget) -> None:
        began, seconds = monotonic(), max(0.0005, budget.left)
        self._sent = began
        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(packed)
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
                piece = self._piece(budget)
                if not piece:
                    raise NoReply("the server has closed the connection")
                reader.feed(piece)
        except hiredis.ProtocolError as error:
            raise Nonsense(f"unexpected reply: {error}") from None

    def _piece(self, budget: Budget) -> bytes:
        while True:
            began, seconds = monotonic(), budget.slice()
            try:
                self.socket.settimeout(seconds)
                piece = self.socket.recv(PIECE)
            except OSError as error:
                failure = _failure(error, began + seconds)
                if failure.__class__ is not Overrun:
                    raise failure from None
                budget.spend(monotonic() - began)
                if budget.is_half_spent():
                    self.suspect(self._sent)
                if budget.is_spent():
                    return self._last_look(budget)
            else:
                ended = monotonic()
                budget.spend(ended - began)
                self._hear(ended)
                return piece

    def _last_look(self, budget: Budget) -> bytes:
        """Before anything is given up, what has arrived is read: it may be this process that is late."""
        try:
            self.socket.settimeout(0)
            piece = self.socket.recv(PIECE)
        except NOTHING_YET:
            raise Overrun(budget.held_up) from None
        except OSError as error:
            _reraise_foreign(error)
            raise NoReply(f"the connection broke: {error}") from None
        self._hear(monotonic())
        return piece


def _failure(error: OSError, due: float) -> Exception:
    """`due`: when the socket's own time-out would strike; one that comes earlier is a signal handler's."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return error if monotonic() < due - EARLY_SECONDS else Overrun()
    return NoReply(f"the connection broke: {error}")


def _reraise_foreign(error: OSError) -> None:
    """A socket that does not wait has no time-out to strike: this one is a signal handler's."""
    if isinstance(error, TimeoutError) and error.errno is None:
        raise error
