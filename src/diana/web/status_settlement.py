"""Settles charges when the status of the response is known (`charge_on`), in ASGI and in WSGI.

They are settled once, when the response begins: not later, so that a client that has the response finds its charge refunded as soon as
can be. A client that leaves before has no response and stays charged: otherwise it could guess passwords and disconnect after the wrong
ones.

A WSGI app may set its status before it returns or with its first piece of body. Its response is over when the last piece was taken or the
server closes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from diana.web.asgi_types import Message

DISCONNECTS = ("http.disconnect", "websocket.disconnect")
SWITCHING, FORBIDDEN = 101, 403


class StatusSettler:
    """`receive` and `send` for the app; `settle` is called with the status, at most once."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
        settle: Callable[[int], Awaitable[None]],
    ) -> None:
        self._receive = receive
        self._send = send
        self._settle = settle
        self._is_over = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] in DISCONNECTS:
            self._is_over = True
        return message

    async def send(self, message: Message) -> None:
        if not self._is_over:
            status = _status(message)
            if status is not None:
                await self.settle(status)
        await self._send(message)

    async def settle(self, status: int) -> None:
        if not self._is_over:
            self._is_over = True
            await self._settle(status)


def _status(message: Message) -> int | None:
    """None if the response does not begin with this."""
    kind = message["type"]
    if kind in ("http.response.start", "websocket.http.response.start"):
        return int(message["status"])
    if kind == "websocket.accept":
        return SWITCHING
    # Closed before it was accepted: the server makes a 403 of it.
    return FORBIDDEN if kind == "websocket.close" else None


Settle = Callable[[int], None]


def pass_by_outcome(
    app: Callable[..., Iterable[bytes]], environ: Any, start_response: Any, settle: Settle
) -> Iterable[bytes]:
    """The app's answer; its status is settled before the first piece of it. What the app raises is a 500."""
    named: list[int] = []

    def start(status: str, headers: Any, *exc_info: Any) -> Any:
        named[:] = [int(status[:3])]  # an app may think better of it, until it has sent something
        return start_response(status, headers, *exc_info)

    try:
        body = app(environ, start)
    except Exception:
        settle(500)
        raise
    if named:
        settle(named[0])
        return body
    return _Body(body, named, settle)


class _Body:
    """The body of an app that names its status with the first piece."""

    def __init__(self, body: Iterable[bytes], named: list[int], settle: Settle) -> None:
        self._body = body
        self._named = named
        self._settle = settle

    def __iter__(self) -> Iterator[bytes]:
        pieces = iter(self._body)
        try:
            first = next(pieces, None)
        except Exception:
            self._settle(500)
            raise
        if self._named:
            self._settle(self._named[0])
        if first is not None:
            yield first
            yield from pieces

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


class BodyWithEnd:
    """`at_end` is called once. An iterator that is dropped half-way ends nothing: the server may go on with another."""

    def __init__(self, body: Iterable[bytes], at_end: Callable[[], None]) -> None:
        self._body = body
        self._at_end: Callable[[], None] | None = at_end

    def __iter__(self) -> Iterator[bytes]:
        yield from self._body
        self._end()

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._end()

    def _end(self) -> None:
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end()
