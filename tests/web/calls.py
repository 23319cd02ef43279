"""Calling apps as servers do, without one: an ASGI scope and a WSGI environ, with whatever a hostile client might send in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from diana import Policy
from diana.rules.loading import rules_from_bytes
from diana.web.asgi_types import App, Message

PEER = "203.0.113.9"

Headers = Iterable[tuple[bytes | str, bytes | str]]


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The one line of this name."""
        lines = self.lines(name)
        assert len(lines) <= 1
        return lines[0] if lines else None

    def lines(self, name: str) -> list[str]:
        return [value for field, value in self.headers if field.lower() == name.lower()]


def policy(text: str) -> Policy:
    return rules_from_bytes(text.encode())


def scope(
    path: str = "/",
    *,
    method: str = "GET",
    headers: Headers = (),
    peer: str | None = PEER,
    **more: Any,
) -> dict[str, Any]:
    """A scope as uvicorn makes it."""
    target, _, query = path.partition("?")
    raw = target.encode("utf-8", "surrogateescape")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote_to_bytes(raw).decode("utf-8", "surrogateescape"),
        "raw_path": raw,
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(_bytes(name).lower(), _bytes(value)) for name, value in headers],
        "client": None if peer is None else (peer, 50_000),
        "server": ("127.0.0.1", 8000),
        **more,
    }


async def aask(app: App, path: str = "/", body: bytes = b"", **request: Any) -> Answer:
    """One HTTP request through an ASGI app, and its whole answer."""
    sent: list[Message] = []
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope(path, **request), receive, send)
    return answer_from_messages(sent)


def ask(app: App, path: str = "/", **request: Any) -> Answer:
    return asyncio.run(aask(app, path, **request))


def answer_from_messages(sent: list[Message]) -> Answer:
    start, *rest = sent
    headers = [(name.decode(), value.decode("latin-1")) for name, value in start["headers"]]
    return Answer(start["status"], headers, b"".join(message.get("body", b"") for message in rest))


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """An app that greets over HTTP, echoes over WebSocket, and knows no lifespan."""
    if scope["type"] == "http":
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello"})
    elif scope["type"] == "websocket":
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
    else:
        raise NotImplementedError


WsgiApp = Callable[[Any, Any], Iterable[bytes]]


def environ(
    path: str = "/",
    *,
    method: str = "GET",
    headers: Headers = (),
    peer: str | None = PEER,
    body: bytes = b"",
    script: str = "",
) -> dict[str, Any]:
    """An environ as servers make it: decoded once, lines of one name joined, names with underscores dropped."""
    target, _, query = path.partition("?")
    made: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": script,
        "PATH_INFO": unquote_to_bytes(target).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": peer or "",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(body),
        "wsgi.errors": BytesIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in headers:
        if b"_" in _bytes(name):
            continue
        field = "HTTP_" + _bytes(name).decode("latin-1").upper().replace("-", "_")
        line = _bytes(value).decode("latin-1")
        made[field] = f"{made[field]},{line}" if field in made else line
    return made


def ask_wsgi(app: WsgiApp, path: str = "/", **request: Any) -> Answer:
    started: list[Any] = []

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], None]:
        started[:] = [int(status.split(" ")[0]), list(headers)]
        return lambda _: None

    answered = app(environ(path, **request), start_response)
    try:
        body = b"".join(answered)
    finally:
        if hasattr(answered, "close"):
            answered.close()
    return Answer(started[0], started[1], body)


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1", "replace")
