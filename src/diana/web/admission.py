"""What middlewares do around a request, besides evaluating it.

- Wait for the delay of a leaky bucket: what the client sends meanwhile is buffered for the app, and the client may leave.
- Count the requests in flight, for the factors `inflight` and `loop_lag`: from admission until the response is sent.
- Release the slots of `algo: C` when the response has been sent, or will not be. If the client leaves, the slot is released when the app is
  done: as long as the app works for the client, the request is in flight.
- Keep in the request what the app and limits on routes read: the verdict and the middleware.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, cast

from diana.core.errors import ConfigError, shown
from diana.core.verdict import Verdict
from diana.responses.denial_response import Fields
from diana.shedding.sampling import ProcessActivity
from diana.slots.acquired_slots import AcquiredSlots
from diana.slots.wait_queue import Timer
from diana.web.asgi_types import Message, Receive, Send
from diana.web.status_settlement import BodyWithEnd

MOST_BUFFERED = 65_536
"""Bytes of a body that are buffered meanwhile; from a client that sends more, nothing is read until the delay is over."""
MOST_BUFFERED_IN_ALL = 8 * 1_048_576
"""Of all requests of a process that wait, but for one message of each: a client may choose its keys, and so the number of queues."""
MOST_WAITING = 1_024
"""Requests of a process that wait at once; what comes then is denied."""
DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class Waiting:
    """What waits in this process, counted."""

    def __init__(self, most: int = MOST_WAITING, most_bytes: int = MOST_BUFFERED_IN_ALL) -> None:
        self.requests = 0
        self.bytes = 0
        self._most = most
        self._most_bytes = most_bytes
        self._lock = Lock()

    @property
    def is_full(self) -> bool:
        return self.requests >= self._most

    @property
    def may_buffer(self) -> bool:
        return self.bytes < self._most_bytes

    @contextmanager
    def place(self) -> Iterator[None]:
        with self._lock:
            self.requests += 1
        try:
            yield
        finally:
            with self._lock:
                self.requests -= 1

    def buffer(self, size: int) -> None:
        """So much more; or less, below zero."""
        with self._lock:
            self.bytes += size


WAITING = Waiting()


def deny_instead(verdict: Verdict) -> Verdict:
    """There is a place in the queue, but none to wait in: the verdict of a request that has to come back when its delay is over."""
    delays = [
        verdict.decisions[place].outcome[4] if place in verdict.match.enforced else 0
        for place in range(len(verdict.decisions))
    ]
    longest = delays.index(max(delays))
    decision = verdict.decisions[longest]
    _, remaining, _, reset_us, delay_us = decision.outcome
    denied = decision._replace(outcome=(False, remaining, delay_us, reset_us, 0))
    decisions = (*verdict.decisions[:longest], denied, *verdict.decisions[longest + 1 :])
    rule = verdict.rules[longest]
    return verdict._replace(allowed=False, delay=0.0, denied_by=rule, decisions=decisions)


class DelayedRequest:
    """`receive` is the app's `receive`: first what was buffered, then what the server brings."""

    def __init__(self, receive: Receive, waiting: Waiting = WAITING) -> None:
        self._receive = receive
        self._waiting = waiting
        self._buffer: deque[Message] = deque()
        self._bytes = 0
        # A pending receive is never cancelled: the server might already have taken the message out of its queue.
        self._next: asyncio.Future[Any] | None = None

    async def wait(self, seconds: float, timer: Timer) -> bool:
        """Wait out the delay; False if the client leaves meanwhile."""
        return await self.wait_for(asyncio.ensure_future(timer.asleep(seconds)))

    async def wait_for(self, over: asyncio.Future[Any]) -> bool:
        """Until this is over, or, False, the client leaves."""
        try:
            while not over.done():
                if self._bytes > MOST_BUFFERED or not self._waiting.may_buffer:
                    await over
                    break
                self._next = self._next or asyncio.ensure_future(self._receive())
                await asyncio.wait({over, self._next}, return_when=asyncio.FIRST_COMPLETED)
                if self._next.done() and self._store(self._next):
                    return False
            over.result()
        except BaseException:
            self.close()
            raise
        finally:
            over.cancel()
        return True

    async def receive(self) -> Message:
        if self._buffer:
            message = self._buffer.popleft()
            self._waiting.buffer(-_size(message))
            return message
        if self._next is not None:
            pending = self._next
            message = await asyncio.shield(pending)
            if self._next is pending:
                self._next = None
            return message
        return await self._receive()

    def close(self) -> None:
        """The request is over; nothing more is received."""
        if self._next is not None:
            self._next.cancel()
        self._waiting.buffer(-sum(map(_size, self._buffer)))
        self._buffer.clear()

    def _store(self, done: asyncio.Future[Any]) -> bool:
        """Whether it says that the client has left."""
        message: Message = done.result()
        self._next = None
        self._buffer.append(message)
        self._bytes += _size(message)
        self._waiting.buffer(_size(message))
        return message["type"] in DISCONNECTS


def _size(message: Message) -> int:
    return len(message.get("body") or b"")


LAST_UNLESS_MORE = frozenset({"http.response.body", "websocket.http.response.body"})
ALWAYS_LAST = frozenset({"websocket.close", "http.response.pathsend"})


def send_and_release(send: Send, held: AcquiredSlots) -> Send:
    """`send` that gives the places back behind the last piece of the answer, though the app may have more to do."""
    has_trailers = False

    async def sending(message: Message) -> None:
        nonlocal has_trailers
        await send(message)
        kind = message["type"]
        if kind == "http.response.start":
            has_trailers = bool(message.get("trailers"))
        elif kind in LAST_UNLESS_MORE:
            if not message.get("more_body") and not has_trailers:
                held.release()
        elif kind in ALWAYS_LAST or (
            kind == "http.response.trailers" and not message.get("more_trailers")
        ):
            held.release()

    return sending


def enter_in_loop(activity: ProcessActivity) -> None:
    with suppress(RuntimeError):  # trio has none of asyncio's
        activity.loop = asyncio.get_running_loop()
    activity.enter()


def leave_after(body: Iterable[bytes], environ: Any, activity: ProcessActivity) -> Iterable[bytes]:
    """A WSGI app's answer. One that is made already is left at once; a server may also send a file in a way of its own."""
    sends_file = environ.get("wsgi.file_wrapper")
    if isinstance(body, list | tuple) or (
        isinstance(sends_file, type) and isinstance(body, sends_file)
    ):
        activity.leave()
        return body
    return BodyWithEnd(body, activity.leave)


VERDICT = "diana.verdict"
"""In a scope and an environ: what the rules said. A limit on the route puts its own verdict in its place."""
SCOPE_VERDICT = "diana"
"""The same in a scope. An environ has dots in the names of what is no text (PEP 3333)."""
MIDDLEWARE = "diana.web"
"""The middleware whose store and settings limits on routes share."""

App = Callable[..., Any]
Denied = Callable[[Any, Any], Any]
"""The application's own answer to a denied request, from the request and the verdict; None: Diana's."""


def checked_denied(denied: Denied | None) -> Denied | None:
    if denied is not None and not callable(denied):
        raise ConfigError(f"denied is {denied!r}; give a function of the request and the verdict")
    return denied


def checked_answer(own: Any) -> App | None:
    """What `denied` has returned for ASGI and WSGI: an app that answers, or None."""
    if own is not None and not callable(own):
        raise ConfigError(
            f"denied= must return a response, such as Response(...) of the framework, or None (got {shown(own)}); "
            "write return JSONResponse({...}, 429) or the like"
        )
    return cast("App | None", own)


def beside_own_words(fields: Fields) -> Fields:
    """Header lines of a denial that go with the application's own answer, which has a body of its own."""
    return [field for field in fields if not field[0].startswith(b"content-")]
