"""A login behind the middleware, for servers with several workers. What reaches it is written down, one letter each."""

from __future__ import annotations

import os
from typing import Any

from diana.asgi import RateLimitMiddleware as Asgi
from diana.wsgi import RateLimitMiddleware as Wsgi

STORE = os.environ["SERVED_STORE"]
RULES = os.environ["SERVED_RULES"]


def status_of(path: str) -> int:
    # Of letters at the end of a file none is lost, however many processes write.
    with open(f"{RULES}.reached", "ab", buffering=0) as reached:
        reached.write(b"x")
    return int(path.strip("/"))


def login(environ: Any, start_response: Any) -> list[bytes]:
    start_response(f"{status_of(environ['PATH_INFO'])} Status", [("Content-Length", "0")])
    return []


async def alogin(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    status = status_of(scope["path"])
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


wsgi = Wsgi(login, RULES, store=STORE)
asgi = Asgi(alogin, RULES, store=STORE)
