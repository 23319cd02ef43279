"""One line in your app: the same middleware in every framework."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import bottle
import pytest
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import get as litestar_get
from litestar.middleware import DefineMiddleware
from quart import Quart
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from diana.asgi import RateLimitMiddleware as Asgi
from diana.testing import FakeClock
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web.calls import Answer, aask, ask, ask_wsgi, policy

RULES = """
- url: /
  rules: [{name: site, unit: minute, rpu: 4}]
- url: /api/hello/{who}
  rules: [{name: hello, actor: segment who, unit: minute, rpu: 2}]
"""

Ask = Callable[[str], Answer]


def limits() -> dict[str, Any]:
    return {"rules": policy(RULES), "clock": FakeClock()}


def starlette() -> Ask:
    """The middleware outside, the route in a mounted router."""

    async def hello(request: Any) -> PlainTextResponse:
        return PlainTextResponse(f"hello {request.path_params['who']}")

    inner = Starlette(routes=[Route("/hello/{who}", hello)])
    app = Starlette(routes=[Mount("/api", inner)], middleware=[Middleware(Asgi, **limits())])
    return lambda path: ask(app, path)


def starlette_inside_a_mount() -> Ask:
    """The middleware itself in a mounted app: it still sees the whole path."""

    async def hello(request: Any) -> PlainTextResponse:
        return PlainTextResponse(f"hello {request.path_params['who']}")

    inner = Starlette(routes=[Route("/hello/{who}", hello)])
    app = Starlette(routes=[Mount("/api", Asgi(inner, **limits()))])
    return lambda path: ask(app, path)


def fastapi() -> Ask:
    app = FastAPI()
    api = FastAPI()

    @api.get("/hello/{who}", response_class=PlainTextResponse)
    def hello(who: str) -> str:
        return f"hello {who}"

    app.mount("/api", api)
    app.add_middleware(Asgi, **limits())
    return lambda path: ask(app, path)


def litestar() -> Ask:
    @litestar_get("/api/hello/{who:str}", media_type="text/plain", sync_to_thread=False)
    def hello(request: LitestarRequest[Any, Any, Any]) -> str:
        return f"hello {request.path_params['who']}"

    app: Any = Asgi(Litestar([hello], logging_config=None), **limits())  # type: ignore[arg-type]
    return lambda path: ask(app, path)


def litestar_by_its_own_way() -> Ask:
    @litestar_get("/api/hello/{who:str}", media_type="text/plain", sync_to_thread=False)
    def hello(request: LitestarRequest[Any, Any, Any]) -> str:
        return f"hello {request.path_params['who']}"

    limited: Any = DefineMiddleware(Asgi, **limits())  # type: ignore[arg-type]
    app: Any = Litestar([hello], middleware=[limited], logging_config=None)
    return lambda path: ask(app, path)


def quart() -> Ask:
    app = Quart(__name__)

    @app.get("/api/hello/<who>")
    async def hello(who: str) -> str:
        return f"hello {who}"

    app.asgi_app = Asgi(app.asgi_app, **limits())  # type: ignore
    return lambda path: ask(app, path)  # type: ignore[arg-type]


def flask() -> Ask:
    app = Flask(__name__)

    @app.get("/api/hello/<who>")
    def hello(who: str) -> str:
        return f"hello {who}"

    app.wsgi_app = Wsgi(app.wsgi_app, **limits())  # type: ignore[method-assign]
    return lambda path: ask_wsgi(app, path)


def bottle_app() -> Ask:
    app = bottle.Bottle()

    @app.get("/api/hello/<who>")  # type: ignore[untyped-decorator]
    def hello(who: str) -> str:
        return f"hello {who}"

    limited = Wsgi(app, **limits())
    return lambda path: ask_wsgi(limited, path)


FRAMEWORKS = [
    starlette,
    starlette_inside_a_mount,
    fastapi,
    litestar,
    litestar_by_its_own_way,
    quart,
    flask,
    bottle_app,
]


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.__name__)
def test_a_framework(framework: Callable[[], Ask]) -> None:
    asked = framework()
    first = asked("/api/hello/ann")
    assert (first.status, first.body) == (200, b"hello ann")
    told = first.lines("ratelimit")
    assert told == ['"site";r=3;t=15, "hello";r=1;t=30']
    assert asked("/api/hello/ann").status == 200
    denied = asked("/api/hello/ann/")
    assert denied.status == 503
    assert denied.header("retry-after") == "30"
    assert [asked("/api/hello/bob").status for _ in range(2)] == [200, 200]
    assert asked("/api/hello/eve").status == 503


def test_streams_and_background_tasks_pass_untouched() -> None:
    done: list[str] = []

    async def numbers() -> Any:
        for number in range(1_000):
            yield str(number)

    async def stream(request: Any) -> StreamingResponse:
        return StreamingResponse(numbers(), background=BackgroundTask(done.append, "afterwards"))

    app = Starlette(routes=[Route("/", stream)], middleware=[Middleware(Asgi, **limits())])
    answer = asyncio.run(aask(app))
    assert answer.body == "".join(map(str, range(1_000))).encode()
    assert answer.header("ratelimit") == '"site";r=3;t=15'
    assert done == ["afterwards"]
