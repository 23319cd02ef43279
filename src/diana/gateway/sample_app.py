"""A small service to put a gateway in front of: `diana gateway --sample`."""

from __future__ import annotations

from diana.web.asgi_types import Message, Receive, Scope, Send

GREETING = b"hello from behind the gateway\n"


async def sample(scope: Scope, receive: Receive, send: Send) -> None:
    """Greets whoever comes through; at `/echo`, says back what it is told, piece by piece."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "websocket":
        await _echo_messages(receive, send)
    elif scope["path"] == "/echo":
        await send(_start())
        while (message := await receive()).get("more_body"):
            await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        await send({"type": "http.response.body", "body": message.get("body", b"")})
    else:
        await send(_start((b"content-length", str(len(GREETING)).encode())))
        await send({"type": "http.response.body", "body": GREETING})


def _start(*headers: tuple[bytes, bytes]) -> Message:
    described = [(b"content-type", b"text/plain; charset=utf-8"), *headers]
    return {"type": "http.response.start", "status": 200, "headers": described}


async def _echo_messages(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        said = {kind: message[kind] for kind in ("text", "bytes") if message.get(kind) is not None}
        await send({"type": "websocket.send", **said})
