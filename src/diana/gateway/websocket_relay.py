"""A WebSocket on both sides of the gateway: messages and the closing word go to and fro.

Each side has a connection of its own, so that compression, masking and pings are settled on each side alone.
"""

from __future__ import annotations

import asyncio

from aiohttp import (
    ClientError,
    ClientSession,
    ClientWebSocketResponse,
    ServerTimeoutError,
    WSMsgType,
    WSServerHandshakeError,
)
from yarl import URL

from diana.gateway.error_response import ErrorResponse, answer, problem
from diana.gateway.forwarding_headers import Forwarded, response_lines
from diana.web.asgi_types import Receive, Scope, Send

LARGEST_MESSAGE = 16 * 1024 * 1024
NORMAL, GOING_AWAY, SERVER_ERROR = 1000, 1001, 1011
UNREACHABLE = problem(502, "The service behind this gateway cannot be reached.")
TOO_SLOW = problem(504, "The service behind this gateway took too long to answer.")
NO_SWITCH = problem(502, "The service behind this gateway does not speak WebSocket here.")


async def relay(
    pool: ClientSession,
    url: URL,
    forwarded: Forwarded,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """The upstream is asked first; only if it agrees is the client accepted."""
    await receive()  # websocket.connect
    scope["diana.connected"] = True
    try:
        upstream = await pool.ws_connect(
            url,
            protocols=forwarded.protocols,
            headers=forwarded.lines,
            max_msg_size=LARGEST_MESSAGE,
            autoclose=False,
        )
    except WSServerHandshakeError as refused:
        return await answer(_refusal(refused), scope, receive, send)
    except ServerTimeoutError:
        return await answer(TOO_SLOW, scope, receive, send)
    except (ClientError, OSError, ValueError):
        return await answer(UNREACHABLE, scope, receive, send)
    await send({"type": "websocket.accept", "subprotocol": upstream.protocol})
    pumps = {
        asyncio.ensure_future(_to_client(upstream, send)),
        asyncio.ensure_future(_to_upstream(upstream, receive)),
    }
    try:
        done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in done:
            pump.result()
    finally:
        for pump in pumps:
            pump.cancel()
        await upstream.close(code=GOING_AWAY)


async def _to_client(upstream: ClientWebSocketResponse, send: Send) -> None:
    while True:
        message = await upstream.receive()
        if message.type is WSMsgType.TEXT:
            await send({"type": "websocket.send", "text": message.data})
        elif message.type is WSMsgType.BINARY:
            await send({"type": "websocket.send", "bytes": message.data})
        elif message.type is WSMsgType.CLOSE:
            code = message.data if _may_be_sent(message.data) else NORMAL
            return await send(
                {"type": "websocket.close", "code": code, "reason": message.extra or ""}
            )
        else:
            # Lost, or what it sent cannot be read: not the client's fault, and not a normal end.
            return await send({"type": "websocket.close", "code": SERVER_ERROR})


async def _to_upstream(upstream: ClientWebSocketResponse, receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            code, reason = message.get("code", NORMAL), message.get("reason") or ""
            said = code if _may_be_sent(code) else GOING_AWAY if code == 1006 else NORMAL
            await upstream.close(code=said, message=reason.encode()[:123])
            return
        text = message.get("text")
        try:
            if text is not None:
                await upstream.send_str(text)
            else:
                await upstream.send_bytes(message["bytes"])
        except (ConnectionError, ClientError):
            # The other pump reads why, and tells the client.
            await asyncio.Event().wait()


def _refusal(refused: WSServerHandshakeError) -> ErrorResponse:
    """The upstream's own status, if it is one that refuses."""
    if refused.status < 300:
        return NO_SWITCH
    try:
        said = problem(refused.status, "The service behind this gateway refused the handshake.")
    except ValueError:
        return NO_SWITCH
    raw = [(name.encode(), value.encode()) for name, value in (refused.headers or {}).items()]
    about_body = {name for name, _ in said.headers}
    own = [
        line
        for line in response_lines(raw, refused.status)
        if line[0] not in about_body and line[0] != b"content-encoding"
    ]
    return said._replace(headers=[*said.headers, *own])


def _may_be_sent(code: object) -> bool:
    """1005, 1006 and 1015 are said of connections, never on them."""
    return isinstance(code, int) and (
        code in (1000, 1001, 1002, 1003) or 1007 <= code <= 1014 or 3000 <= code <= 4999
    )
