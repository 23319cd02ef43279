"""What the gateway itself answers, when it is neither the limiter nor the upstream that speaks: problem+json (RFC 9457)."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import NamedTuple

from diana.asgi import REFUSAL_OF_HANDSHAKES
from diana.web.asgi_types import Receive, Scope, Send

POLICY_VIOLATION = 1008


class ErrorResponse(NamedTuple):
    """A whole answer, written once."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def problem(status: int, detail: str, *headers: tuple[bytes, bytes]) -> ErrorResponse:
    """`problem(504, "The service took too long to answer.")`."""
    said = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    body = json.dumps(said).encode()
    described = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    return ErrorResponse(status, [*described, *headers], body)


async def answer(said: ErrorResponse, scope: Scope, receive: Receive, send: Send) -> None:
    """Send it; to a WebSocket's handshake too, before it was accepted."""
    response = "http.response"
    if scope["type"] == "websocket":
        if scope.get("diana.connected") is None:
            await receive()  # websocket.connect: before it nothing may be sent
        response = REFUSAL_OF_HANDSHAKES
        if response not in (scope.get("extensions") or ()):
            # The server makes a 403 of it.
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
    body = b"" if scope.get("method") == "HEAD" else said.body
    await send({"type": f"{response}.start", "status": said.status, "headers": [*said.headers]})
    await send({"type": f"{response}.body", "body": body})
