"""A connection for an event loop: all decisions that wait when the loop turns travel together in one script call.

Nobody waits for company: what was asked in this turn of the loop is sent at its end, and the next turn's does not wait for the answer.
The loop only ever sends and receives without blocking; the socket came ready from the keeper's thread.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

import hiredis

from diana.stores.redis.connection.threads import PIECE
from diana.stores.redis.protocol.commands import Lost, NoLink, ServerClock, Talk, acquire

MOST_REQUESTS = 128
MOST_KEYS = 512


Asked = tuple[list[bytes], list[Any], int | None, "asyncio.Future[Any]"]
"""A request of one task, on its way into the next script call: keys, arguments, the time if given, and where the answer goes."""


class UnderWay:
    """A talk that waits for replies."""

    __slots__ = ("deadline", "done", "replies", "talk")

    def __init__(self, talk: Talk, done: Callable[[Any], None], deadline: float) -> None:
        self.talk = talk
        self.done = done
        self.deadline = deadline
        self.replies = 1


class Turn:
    """One server, one loop. `want` asks the keeper for a socket; `lost` is told what went wrong."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: ServerClock,
        budget: float,
        want: Callable[[Turn], None],
        lost: Callable[[Lost | NoLink], None],
        trips: Callable[[], None],
        slot_of: Callable[[bytes], int] | None = None,
    ) -> None:
        self.loop = loop
        self._clock = clock
        self._budget = budget
        self._want = want
        self._lost = lost
        self._trips = trips
        self._slot_of = slot_of
        self._socket: socket.socket | None = None
        self._wanted = False
        self._reader = hiredis.Reader()
        self._asked: list[Asked] = []
        self._talks: list[UnderWay] = []
        self._under_way: deque[UnderWay] = deque()
        self._unsent = b""
        self._flushing = False
        self._watch: asyncio.TimerHandle | None = None
        self._waits_until: float | None = None
        """The deadline of who has waited longest for a socket: waiting for it is part of the budget."""

    def decide(self, keys: list[bytes], argv: list[Any], now: int | None) -> asyncio.Future[Any]:
        """What the script gives for one request; it travels with the others of this turn."""
        answer = self.loop.create_future()
        self._asked.append((keys, argv, now, answer))
        if not self._flushing:
            self._flush_soon()
        return answer

    def converse(self, talk: Talk) -> asyncio.Future[Any]:
        """What a talk comes to, by itself."""
        answer = self.loop.create_future()

        def done(result: Any) -> None:
            _resolve(answer, result)

        self._talks.append(UnderWay(talk, done, 0.0))
        if not self._flushing:
            self._flush_soon()
        return answer

    def attach(self, greeted: socket.socket) -> None:
        """A socket is ready. Called in the loop."""
        self._wanted = False
        if self._socket is not None or self.loop.is_closed():
            greeted.close()
            return
        greeted.setblocking(False)
        self._socket = greeted
        self._reader = hiredis.Reader()
        self.loop.add_reader(greeted, self._readable)
        if self._asked or self._talks:
            self._flush()

    def close(self, error: Exception | None = None) -> None:
        """Let go of the socket; whoever waits is told."""
        greeted, self._socket = self._socket, None
        if greeted is not None:
            if not self.loop.is_closed():
                self.loop.remove_reader(greeted)
                self.loop.remove_writer(greeted)
            greeted.close()
        self._unsent = b""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._give_up(error or NoLink("closed"))

    def abandon(self) -> None:
        """In a forked child. The loop is not told: what it watches, it watches for the parent too."""
        if self._socket is not None:
            self._socket.close()

    def _give_up(self, error: Exception) -> None:
        self._waits_until = None
        under_way, self._under_way = self._under_way, deque()
        talks, self._talks = self._talks, []
        asked, self._asked = self._asked, []
        for one in (*under_way, *talks):
            one.talk.close()
            one.done(error)
        for *_, answer in asked:
            _resolve(answer, error)

    def _flush_soon(self) -> None:
        self._flushing = True
        self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        deadline = self._waits_until or monotonic() + self._budget
        if self._socket is None:
            self._waits_until = deadline
            self._watch_until(deadline)
            if not self._wanted:
                self._wanted = True
                self._want(self)
            return
        self._waits_until = None
        talks, self._talks = self._talks, []
        for one in talks:
            one.deadline = deadline
            self._start(one)
        if self._slot_of is not None and len(self._asked) > 1:
            self._asked.sort(key=self._slot)
        while self._asked and self._socket is not None:
            self._start(self._batch(deadline))

    def _batch(self, deadline: float) -> UnderWay:
        """As many of the requests that wait as may travel together."""
        asked = self._asked
        now, slot, count = asked[0][2], self._slot(asked[0]), 0
        keys: list[bytes] = []
        argv: list[Any] = []
        for request in asked:
            more_keys, more_argv, its_now, _ = request
            full = count == MOST_REQUESTS or len(keys) + len(more_keys) > MOST_KEYS
            if (full and count) or its_now != now or (slot and self._slot(request) != slot):
                break
            keys += more_keys
            argv += more_argv
            count += 1
        answers = [request[3] for request in asked[:count]]
        self._asked = asked[count:]

        def done(result: Any) -> None:
            if result.__class__ is list and len(result) != len(answers) + 1:
                result = Lost("this is no answer of a store")
                self._lost(result)
            if isinstance(result, Exception):
                for answer in answers:
                    _resolve(answer, result)
            else:
                at, *parts = result
                for answer, part in zip(answers, parts, strict=True):
                    if not answer.done():
                        answer.set_result((at, part))

        talk = acquire(self._clock, keys, argv, now, deadline)
        return UnderWay(talk, done, deadline)

    def _slot(self, request: Asked) -> int:
        return 0 if self._slot_of is None else self._slot_of(request[0][0]) + 1

    def _start(self, one: UnderWay) -> None:
        self._advance(one, None)

    def _advance(self, one: UnderWay, reply: Any) -> None:
        """The next command of a talk, or its end."""
        try:
            step = one.talk.send(reply)
        except StopIteration as end:
            one.done(end.value)
        except Exception as error:
            one.done(error)
            if isinstance(error, Lost):
                self._break(error)  # READONLY, OOM: it answers, but it is no store now
        else:
            self._trips()
            one.replies = step.replies
            self._under_way.append(one)
            self._watch_until(one.deadline)
            self._send(step.packed())

    def _send(self, packed: bytes) -> None:
        if self._socket is None:
            return
        if self._unsent:
            self._unsent += packed
            return
        try:
            sent = self._socket.send(packed)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = 0
        except OSError as error:
            self._break(Lost(f"sending failed: {error}"))
            return
        if sent < len(packed):
            self._unsent = packed[sent:]
            self.loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        if self._socket is None:
            return
        self.loop.remove_writer(self._socket)
        packed, self._unsent = self._unsent, b""
        self._send(packed)

    def _readable(self) -> None:
        greeted = self._socket
        if greeted is None:
            return
        try:
            piece = greeted.recv(PIECE)
            while piece:
                self._reader.feed(piece)
                self._answer()
                if len(piece) < PIECE and not getattr(greeted, "pending", int)():
                    return
                piece = greeted.recv(PIECE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._break(Lost(f"the connection broke: {error}"))
        except hiredis.ProtocolError as error:
            self._break(Lost(f"this is no answer of a server: {error}"))
        else:
            if self._under_way or self._asked or self._talks:
                self._break(Lost("the server has closed the connection"))
            else:
                self.close()  # nobody is hurt: an idle connection was closed

    def _answer(self) -> None:
        gets = self._reader.gets
        while (reply := gets()) is not False:
            if not self._under_way:
                raise hiredis.ProtocolError("an answer that nobody asked for")
            one = self._under_way[0]
            one.replies -= 1
            if not one.replies:
                self._under_way.popleft()
                self._advance(one, reply)

    def _watch_until(self, deadline: float) -> None:
        if self._watch is None:
            self._watch = self.loop.call_later(max(0.0, deadline - monotonic()), self._overrun)

    def _overrun(self) -> None:
        """Is the oldest of those under way too late? One timer watches over them all."""
        self._watch = None
        if self._under_way:
            left = self._under_way[0].deadline - monotonic()
            if left <= 0:
                self._break(Lost("no answer within the budget"))
            else:
                self._watch_until(self._under_way[0].deadline)
        elif self._socket is None:
            # Those who come next shall not wait as long as these did.
            self._break(NoLink("no connection was ready within the budget"))

    def _break(self, error: Lost | NoLink) -> None:
        self._lost(error)
        self.close(error)


def _resolve(answer: asyncio.Future[Any], result: Any) -> None:
    """The task may have been cancelled meanwhile; its charge stands."""
    if answer.done() or answer.get_loop().is_closed():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
