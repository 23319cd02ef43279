"""`charge_on` of a limit on a route: only responses with these statuses are charged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import litestar
import pytest
from fastapi import Depends, FastAPI, HTTPException
from flask import Flask, abort
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as StarletteError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

import diana.fastapi
import diana.flask
import diana.litestar
import diana.starlette
from diana import ConfigError, Policy
from diana.asgi import RateLimitMiddleware as Asgi
from diana.testing import FakeClock
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web import django_site  # noqa: F401  # sets Django up
from tests.web.calls import Answer, aask, ask, ask_wsgi, scope
from tests.web.test_route_beside_middleware import SITE, left
from tests.web.test_routes import site

import diana.django  # isort: skip
import diana.rest_framework  # isort: skip
from django.core.exceptions import PermissionDenied  # isort: skip
from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.http import HttpRequest, HttpResponse  # isort: skip
from rest_framework.exceptions import PermissionDenied as RestPermissionDenied  # isort: skip
from rest_framework.response import Response as RestResponse  # isort: skip
from rest_framework.views import APIView  # isort: skip

Asked = Callable[..., Answer]
LIMIT = "2/hour"
FAILURES: dict[str, Any] = {"charge_on": ["4xx"], "name": "failures", "algo": "W"}
"""As for a login: what succeeds costs nothing."""


def is_wrong(query: Any) -> bool:
    return "wrong" in query


def flask_app(**options: Any) -> Flask:
    from flask import request

    app = Flask("site")

    @app.get("/")
    @diana.flask.rate_limit(LIMIT, **FAILURES, **options)
    def home() -> str:
        if "raise" in request.args:
            abort(403)
        if is_wrong(request.args):
            return "wrong", 401  # type: ignore[return-value]
        return "hello"

    return app


def on_flask(rules: Policy | None, options: Any) -> Asked:
    app: Any = flask_app(**({} if rules is not None else options)).wsgi_app
    app = app if rules is None else Wsgi(app, rules, **options)
    return lambda *args: ask_wsgi(app, *args)


def on_starlette(rules: Policy | None, options: Any) -> Asked:
    @diana.starlette.rate_limit(LIMIT, **FAILURES)
    async def home(request: Request) -> PlainTextResponse:
        if "raise" in request.query_params:
            raise StarletteError(403)
        return PlainTextResponse("hello", 401 if is_wrong(request.query_params) else 200)

    app = Asgi(Starlette(routes=[Route("/", home)]), rules, **options)
    return lambda *args: ask(app, *args)


def on_fastapi(rules: Policy | None, options: Any) -> Asked:
    app = FastAPI()
    limit = diana.fastapi.RateLimit(LIMIT, **FAILURES)

    @app.get("/", dependencies=[Depends(limit)])
    async def home(wrong: str | None = None) -> str:
        if wrong is not None:
            raise HTTPException(401)
        return "hello"

    @app.get("/number/{number}", dependencies=[Depends(limit)])
    async def numbered(number: int) -> int:
        return number

    some = Asgi(app, rules, **options)
    return lambda *args: ask(some, *args)


def on_litestar(rules: Policy | None, options: Any) -> Asked:
    guard = diana.litestar.rate_limit(LIMIT, **FAILURES)

    @litestar.get("/", guards=[guard], sync_to_thread=False)
    def home(request: litestar.Request[Any, Any, Any]) -> litestar.Response[str]:
        return litestar.Response(
            "hello", status_code=401 if is_wrong(request.query_params) else 200
        )

    app: Any = litestar.Litestar(
        [home], before_send=[diana.litestar.add_headers], openapi_config=None
    )
    some = Asgi(app, rules, **options)
    return lambda *args: ask(some, *args)


def django_view(**options: Any) -> Any:
    @diana.django.rate_limit(LIMIT, **FAILURES, **options)
    def home(request: HttpRequest) -> HttpResponse:
        if "raise" in request.GET:
            raise PermissionDenied
        return HttpResponse("hello", status=401 if is_wrong(request.GET) else 200)

    return home


def async_django_view(**options: Any) -> Any:
    @diana.django.rate_limit(LIMIT, **FAILURES, **options)
    async def home(request: HttpRequest) -> HttpResponse:
        if "raise" in request.GET:
            raise PermissionDenied
        return HttpResponse("hello", status=401 if is_wrong(request.GET) else 200)

    return home


def on_django(rules: Policy | None, options: Any) -> Asked:
    return site(django_view(**({} if rules else options)), rules, options)


def on_async_django(rules: Policy | None, options: Any) -> Asked:
    return site(async_django_view(**({} if rules else options)), rules, options, ASGIHandler)


def on_sync_view_in_async_django(rules: Policy | None, options: Any) -> Asked:
    return site(django_view(**({} if rules else options)), rules, options, ASGIHandler)


def on_rest_framework(rules: Policy | None, options: Any) -> Asked:
    class Items(APIView):  # type: ignore[misc]
        authentication_classes = ()
        throttle_classes = [diana.rest_framework.rate_limit(LIMIT, **FAILURES)]

        def get(self, request: Any) -> RestResponse:
            if is_wrong(request.query_params):
                raise RestPermissionDenied
            return RestResponse("hello")

    return site(Items.as_view(), rules, options)


BY_THEMSELVES = [on_flask, on_django, on_async_django, on_sync_view_in_async_django]
"""Where the framework shows the status without the middleware."""
ALL = [*BY_THEMSELVES, on_starlette, on_fastapi, on_litestar, on_rest_framework]


@pytest.mark.parametrize("made", ALL)
def test_only_these_responses_are_charged(made: Any) -> None:
    asked = made(SITE, {"clock": FakeClock()})
    assert [asked("/").status for _ in range(5)] == [200] * 5
    assert {asked("/?wrong=1").status for _ in range(2)} in ({401}, {403})
    denied = asked("/")
    assert denied.status == 429
    assert denied.header("RateLimit").split(";")[0] == '"failures"'


@pytest.mark.parametrize("made", BY_THEMSELVES)
@pytest.mark.parametrize("rules", [SITE, None], ids=["behind the middleware", "by itself"])
def test_what_a_view_raises_counts_by_its_status(made: Any, rules: Policy | None) -> None:
    asked = made(rules, {"clock": FakeClock()})
    assert [asked("/").status for _ in range(3)] == [200] * 3
    assert [asked("/?raise=1").status for _ in range(3)] == [403, 403, 429]


def test_starlette_s_own_errors_count_by_their_status() -> None:
    asked = on_starlette(SITE, {"clock": FakeClock()})
    assert [asked("/").status for _ in range(3)] == [200] * 3
    assert [asked("/?raise=1").status for _ in range(3)] == [403, 403, 429]


def test_what_fastapi_finds_invalid_counts_by_its_status() -> None:
    asked = on_fastapi(SITE, {"clock": FakeClock()})
    statuses = [asked(f"/number/{number}").status for number in "12x3y4"]
    assert statuses == [200, 200, 422, 200, 422, 429]


def test_without_the_middleware_the_error_names_it() -> None:
    home = diana.starlette.rate_limit(LIMIT, **FAILURES)(hello_view)
    with pytest.raises(ConfigError, match=r"put diana\.asgi\.RateLimitMiddleware around the app"):
        ask(Starlette(routes=[Route("/", home)]))


def hello_view(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def test_a_throttle_without_the_middleware_names_it(caplog: pytest.LogCaptureFixture) -> None:
    asked = on_rest_framework(None, {})
    assert asked("/").status == 500
    (error,) = (record.exc_info[1] for record in caplog.records if record.exc_info)
    assert isinstance(error, ConfigError)
    assert "add diana.django.RateLimitMiddleware to MIDDLEWARE" in str(error)


def test_the_rules_of_the_middleware_and_the_route_settle_apart() -> None:
    from tests.web.calls import policy

    rules = policy(
        "limits: [{url: /, rules: [{name: errors, unit: hour, rpu: 9, algo: W, charge_on: [5xx]},"
        " {name: site, unit: hour, rpu: 9, algo: W}]}]"
    )
    for made in ALL:
        asked = made(rules, {"clock": FakeClock()})
        asked("/")
        asked("/?wrong=1")
        answer = asked("/")
        assert [left(answer, name) for name in ("errors", "site", "failures")] == [8, 6, 0]


def test_a_client_that_leaves_before_the_response_stays_charged() -> None:
    """Else a client could guess passwords and hang up on the wrong ones."""
    entered = asyncio.Event()

    @diana.starlette.rate_limit(LIMIT, **FAILURES)
    async def home(request: Request) -> PlainTextResponse:
        entered.set()
        while not await request.is_disconnected():
            await asyncio.sleep(0)
        return PlainTextResponse("too late")

    app = Asgi(Starlette(routes=[Route("/", home)]), SITE, clock=FakeClock())

    async def leave() -> None:
        messages: asyncio.Queue[Any] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})

        async def send(message: Any) -> None: ...

        call = asyncio.ensure_future(app(scope("/"), messages.get, send))
        await entered.wait()
        messages.put_nowait({"type": "http.disconnect"})
        await call

    async def main() -> None:
        for _ in range(2):
            entered.clear()
            await leave()
        assert (await aask(app)).status == 429

    asyncio.run(main())


def test_a_stream_is_settled_when_it_begins() -> None:
    left_inside: list[str | None] = []

    async def pieces() -> Any:
        yield b"one"
        left_inside.append((await aask(app)).header("RateLimit"))
        yield b"two"

    async def stream(request: Request) -> StreamingResponse:
        return StreamingResponse(pieces() if "stream" in request.query_params else iter([b"x"]))

    endpoint = diana.starlette.rate_limit(LIMIT, **FAILURES)(stream)
    app = Asgi(Starlette(routes=[Route("/", endpoint)]), Policy([]), clock=FakeClock())
    assert ask(app, "/?stream=1").body == b"onetwo"
    assert left_inside == ['"failures";r=1;t=3600']  # of two, only its own is charged for now


def test_flask_settles_without_the_middleware() -> None:
    app = flask_app(clock=FakeClock())
    assert [ask_wsgi(app.wsgi_app, "/").status for _ in range(4)] == [200] * 4
    answers = [ask_wsgi(app.wsgi_app, "/?wrong=1") for _ in range(3)]
    assert [answer.status for answer in answers] == [401, 401, 429]
    assert json.loads(answers[2].body)["status"] == 429


@pytest.mark.parametrize("handler", [WSGIHandler, ASGIHandler])
def test_two_decorators_on_a_view_of_django(handler: Any) -> None:
    clock = FakeClock()

    @diana.django.rate_limit("9/hour", name="all", clock=clock, algo="W")
    @diana.django.rate_limit(LIMIT, **FAILURES, clock=clock)
    def home(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello", status=401 if is_wrong(request.GET) else 200)

    asked = site(home, None, None, handler)
    for target in ("/", "/?wrong=1"):
        asked(target)
    answer = asked("/")
    assert (left(answer, "all"), left(answer, "failures")) == (6, 0)
