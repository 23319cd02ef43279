"""One application in every framework: each handler says its name, and each has a rule of the same name."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from diana import Policy
from diana.asgi import RateLimitMiddleware as Asgi
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web.calls import policy

ROUTES = {
    "login": "/login",
    "search": "/search/{rest:path}",
    "results": "/find/{term}/results",
    "user": "/users/{id}",
    "deep": "/a/b/{x}/c",
    "export": "/export",
}
RULE = "  - {{url: '{url}', rules: [{{name: {name}, unit: day, rpu: 1000000000}}]}}"


def rules() -> Policy:
    urls = {name: route.replace("/{rest:path}", "") for name, route in ROUTES.items()}
    lines = [RULE.format(name=name, url=url) for name, url in urls.items()]
    return policy("response: {headers: [ietf]}\nlimits:\n" + "\n".join(lines))


def starlette_app() -> Any:
    def handler(name: str) -> Any:
        async def handle(request: Request) -> PlainTextResponse:
            return PlainTextResponse(f"reached {name}")

        return handle

    return Asgi(Starlette(routes=[Route(path, handler(n)) for n, path in ROUTES.items()]), rules())


def fastapi_app() -> Any:
    app = FastAPI()

    def add(name: str, path: str) -> None:
        def handle() -> PlainTextResponse:
            return PlainTextResponse(f"reached {name}")

        async def ahandle() -> PlainTextResponse:
            return handle()

        app.add_api_route(path, ahandle)

    for name, path in ROUTES.items():
        add(name, path)
    app.add_middleware(Asgi, rules=rules())
    return app


def flask_app() -> Any:
    app = Flask(__name__)

    def add(name: str, path: str) -> None:
        app.add_url_rule(path, name, lambda **_: f"reached {name}")

    for name, path in ROUTES.items():
        spelled = path.replace("{rest:path}", "<path:rest>").replace("{", "<").replace("}", ">")
        add(name, spelled)
    app.wsgi_app = Wsgi(app.wsgi_app, rules())  # type: ignore[method-assign]
    return app


def aiohttp_app() -> web.Application:
    app = web.Application()

    def add(name: str, path: str) -> None:
        async def handle(_: web.Request) -> web.Response:
            return web.Response(text=f"reached {name}")

        app.router.add_get(path, handle)

    for name, path in ROUTES.items():
        add(name, path.replace("{rest:path}", "{rest:.*}"))
    return app


NGINX = {
    "login": "= /login",
    "search": "~ ^/search/",
    "results": "~ ^/find/[^/]+/results$",
    "user": "~ ^/users/([^/]+)$",
    "deep": "~ ^/a/b/[^/]*/c$",
    "export": "= /export",
}

asgi = starlette_app()
wsgi = flask_app()


def aiohttp_main(argv: list[str]) -> web.Application:
    """For `python -m aiohttp.web`."""
    return aiohttp_app()
