"""How a request ended, for rules that charge by the answer's status (`charge_on`).

It is settled once, when the response begins: not later, so that a client with the answer in its hands finds its charge given back as soon
as can be. A client that leaves before has no answer, and stays charged: else it could guess passwords and hang up on the wrong ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]

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
