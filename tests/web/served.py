"""What the servers of the tests serve: every path has a limit of its own, so that no test gets in another's way."""

from __future__ import annotations

from typing import Any

from diana import Request, Verdict
from diana.asgi import RateLimitMiddleware as Asgi
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web.calls import hello, policy

RULES = policy("""
identity: {trusted_proxies: [127.0.0.1]}
limits:
  - {url: /twice, rules: [{name: twice, actor: ip, unit: hour, rpu: 2, algo: W, align: first}]}
  - {url: /hundred, rules: [{name: hundred, unit: hour, rpu: 100, algo: W, align: first}]}
  - {url: /socket, rules: [{name: socket, actor: ip, unit: hour, rpu: 2, algo: W, align: first}]}
  - {url: /queue, rules: [{name: queue, unit: day, rpu: 1, algo: LB, burst: 1}]}
  - {url: /, rules: [{name: all, unit: second, rpu: 1000000}]}
""")


held = 0
"""How many requests were told to wait."""


def count(request: Request, verdict: Verdict) -> None:
    global held
    held += verdict.delay > 0


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["path"] == "/duplex":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (message := await receive()).get("more_body"):
            await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    elif scope["path"] == "/held":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(held).encode()})
    else:
        await hello(scope, receive, send)


asgi = Asgi(app, RULES, observers=[count])


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


wsgi = Wsgi(wsgi_app, RULES)
