"""Answers for clients that speak HTTP/1.0: they know no chunks, so a body of unknown length ends with the connection."""

from __future__ import annotations

from diana.gateway.uvicorn_parts import RequestResponseCycle
from diana.middleware.asgi import Message


class UntilItCloses:
    """uvicorn's `send` for one answer, which else would be chunked."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._unknown = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            named = {name.lower() for name, _ in message.get("headers", ())}
            self._unknown = b"content-length" not in named
            if self._unknown:
                self._cycle.chunked_encoding = False
        elif self._unknown:
            # uvicorn counts bytes against a length; here each piece is its own.
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)  # type: ignore[arg-type]
