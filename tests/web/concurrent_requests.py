"""Apps that tell who is inside: for servers that a test starts.

`book_…` sleep and write a plus when a request comes in and a minus when it goes, to the end of one file, so that the order is that of all
processes together. `gate` keeps each request until it is told to let it go.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from diana.asgi import RateLimitMiddleware as Asgi
from diana.rules.loading import rules_from_bytes
from diana.wsgi import RateLimitMiddleware as Wsgi

RULES = rules_from_bytes(
    os.environ.get("INSIDE_RULES", "{url: /, rules: [{algo: C, most: 5}]}").encode()
)
STORE = os.environ.get("INSIDE_STORE") or None
BOOK = os.open(os.environ.get("INSIDE_BOOK", os.devnull), os.O_APPEND | os.O_CREAT | os.O_WRONLY)
SECONDS = 0.005


@contextmanager
def inside() -> Iterator[None]:
    os.write(BOOK, b"+")
    try:
        yield
    finally:
        os.write(BOOK, b"-")


async def sleeping(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError
    with inside():
        await asyncio.sleep(SECONDS)
    await answer(send, b"done")


def sleeping_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    with inside():
        time.sleep(SECONDS)
    start_response("200 OK", [("Content-Length", "4")])
    return [b"done"]


async def answer(send: Any, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_held: dict[str, asyncio.Event] = {}


async def gate(scope: Any, receive: Any, send: Any) -> None:
    """`/hold/7` is kept until `/go/7`; `/inside` tells who is kept."""
    if scope["type"] != "http":
        raise NotImplementedError
    _, verb, *number = scope["path"].split("/")
    if verb == "inside":
        await answer(send, json.dumps(sorted(_held)).encode())
    elif verb == "go":
        _held[number[0]].set()
        await answer(send, b"")
    else:
        event = _held[number[0]] = asyncio.Event()
        try:
            await event.wait()
        finally:
            del _held[number[0]]
        await answer(send, b"kept")


async def unlimited(scope: Any, receive: Any, send: Any) -> None:
    """Only what is held is limited."""
    limited = scope["type"] == "http" and scope["path"].startswith("/hold")
    await (limited_gate if limited else gate)(scope, receive, send)


limited_gate = Asgi(gate, RULES, store=STORE)
book_asgi = Asgi(sleeping, RULES, store=STORE)
book_wsgi = Wsgi(sleeping_wsgi, RULES, store=STORE)
