"""Limits on routes, in every framework: one name, the same header lines and the same answers; they count where the middleware counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import litestar
import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse as FastApiText
from flask import Blueprint, Flask, request
from flask import Response as FlaskResponse
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route, WebSocketRoute

import diana.fastapi
import diana.flask
import diana.litestar
import diana.starlette
from diana import ConfigError, Policy, Verdict
from diana.asgi import RateLimitMiddleware as Asgi
from diana.core.errors import DianaError
from diana.stores.memory import MemoryStore
from diana.testing import FakeClock
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web import django_site  # noqa: F401  # sets Django up
from tests.web.calls import Answer, aask, ask, ask_wsgi, policy
from tests.web.test_asgi import Socket
from tests.web.test_django import DIANA, LOGGING_IN

import diana.django  # isort: skip
import diana.rest_framework  # isort: skip
from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.http import HttpRequest, HttpResponse, JsonResponse  # isort: skip
from django.test import override_settings  # isort: skip
from django.urls import path  # isort: skip
from django.utils.decorators import method_decorator  # isort: skip
from django.views import View  # isort: skip
from rest_framework.decorators import api_view, throttle_classes  # isort: skip
from rest_framework.response import Response as RestResponse  # isort: skip
from rest_framework.views import APIView  # isort: skip

NO_RULES = Policy([])
NOWHERE = "limits: [{url: /nowhere, rules: [{unit: second, rpu: 1}]}]"
Asked = Callable[..., Answer]
Made = Callable[..., Asked]


def over_asgi(app: Any, rules: Policy | None, **middleware: Any) -> Asked:
    if rules is not None:
        app = Asgi(app, rules, **middleware)
    return lambda *args, **kwargs: ask(app, *args, **kwargs)


def over_wsgi(app: Any, rules: Policy | None, **middleware: Any) -> Asked:
    if rules is not None:
        app = Wsgi(app, rules, **middleware)
    return lambda *args, **kwargs: ask_wsgi(app, *args, **kwargs)


def on_flask(
    limit: str, rules: Policy | None = None, middleware: Any = None, **options: Any
) -> Asked:
    app = Flask("site")

    @app.get("/")
    @diana.flask.rate_limit(limit, **options)
    def home() -> str:
        return "hello"

    return over_wsgi(app.wsgi_app, rules, **middleware or {})


def on_starlette(
    limit: str, rules: Policy | None = None, middleware: Any = None, **options: Any
) -> Asked:
    @diana.starlette.rate_limit(limit, **options)
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    return over_asgi(Starlette(routes=[Route("/", home)]), rules, **middleware or {})


def on_fastapi(
    limit: str, rules: Policy | None = None, middleware: Any = None, **options: Any
) -> Asked:
    app = FastAPI()

    @app.get("/", response_class=FastApiText)
    @diana.fastapi.rate_limit(limit, **options)
    async def home() -> str:
        return "hello"

    return over_asgi(app, rules, **middleware or {})


def on_litestar(
    limit: str, rules: Policy | None = None, middleware: Any = None, **options: Any
) -> Asked:
    @litestar.get("/", guards=[diana.litestar.rate_limit(limit, **options)], sync_to_thread=False)
    def home() -> str:
        return "hello"

    app: Any = litestar.Litestar(
        [home],
        before_send=[diana.litestar.add_headers],
        openapi_config=None,
        logging_config=None,  # its own takes pytest's handlers away
    )
    return over_asgi(app, rules, **middleware or {})


def django_settings(rules: Policy | None, middleware: Any) -> dict[str, Any]:
    settings = {f"DIANA_{name.upper()}": value for name, value in (middleware or {}).items()}
    if rules is not None:
        settings |= {"MIDDLEWARE": [LOGGING_IN, DIANA], "DIANA_RULES": rules}
    return settings


def on_django(
    limit: str, rules: Policy | None = None, middleware: Any = None, **options: Any
) -> Asked:
    @diana.django.rate_limit(limit, **options)
    def home(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    return site(home, rules, middleware)


def on_async_django(
    limit: str, rules: Policy | None = None, middleware: Any = None, **options: Any
) -> Asked:
    @diana.django.rate_limit(limit, **options)
    async def home(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    return site(home, rules, middleware, ASGIHandler)


def site(view: Any, rules: Policy | None, middleware: Any, handler: Any = WSGIHandler) -> Asked:
    class Urls:
        urlpatterns = [path("", view), path("other", view)]

    with override_settings(**django_settings(rules, middleware)):
        made = handler()

    def asked(*args: Any, **kwargs: Any) -> Answer:
        with override_settings(ROOT_URLCONF=Urls, **django_settings(rules, middleware)):
            return (ask_wsgi if handler is WSGIHandler else ask)(made, *args, **kwargs)

    return asked


FRAMEWORKS = [on_flask, on_starlette, on_fastapi, on_litestar, on_django, on_async_django]
in_every_framework = pytest.mark.parametrize("made", FRAMEWORKS)


@in_every_framework
def test_a_limit_on_a_route(made: Made) -> None:
    asked = made("2/minute", clock=FakeClock())
    first = asked()
    assert (first.status, first.body) == (200, b"hello")
    assert first.header("RateLimit-Policy") == '"2/minute by ip";q=2;w=60'
    assert first.header("RateLimit") == '"2/minute by ip";r=1;t=30'
    assert asked().status == 200
    denied = asked()
    assert denied.status == 429
    assert denied.header("Retry-After") == "30"
    assert denied.header("RateLimit") == '"2/minute by ip";r=0;t=30'
    assert denied.header("Cache-Control") == "no-store"
    said = json.loads(denied.body)
    assert said["detail"] == "Too many requests. Please try again in 30 seconds."
    assert asked(peer="198.51.100.1").status == 200


@in_every_framework
def test_by_a_function_of_the_request(made: Made) -> None:
    def user(request: Any) -> str | None:
        return request.headers.get("x-user") or None

    asked = made("1/minute", clock=FakeClock(), actor=user)
    of = {name: [("X-User", name)] for name in ("alice", "bob")}
    statuses = [asked(headers=of[name]).status for name in ("alice", "alice", "bob")]
    assert statuses == [200, 429, 200]


@in_every_framework
def test_mistakes_are_told_when_it_is_written(made: Made) -> None:
    for limit, options in (("often", {}), ("1/minute", {"burst": -1}), ("1/minute", {"algo": "X"})):
        with pytest.raises(DianaError):
            made(limit, **options)


@in_every_framework
def test_it_shares_the_settings_of_the_middleware(made: Made) -> None:
    rules = policy("""
namespace: shop
identity: {account: header X-User, trusted_proxies: [203.0.113.9]}
missing: together
response: {status: 418, headers: [legacy, retry-after], body: busy}
limits: [{url: /nowhere, rules: [{unit: second, rpu: 1}]}]
""")
    clock = FakeClock()
    asked = made("1/minute", rules, {"clock": clock}, actor="account")
    of = {name: [("X-User", name)] for name in ("1", "2")}
    assert asked(headers=of["1"]).header("X-RateLimit-Remaining") == "0"
    denied = asked(headers=of["1"])
    assert (denied.status, denied.header("Retry-After")) == (418, "60")
    if made is not on_litestar and made is not on_fastapi:  # they have bodies of their own
        assert denied.body == b"busy"
    assert asked(headers=of["2"]).status == 200
    assert [asked().status, asked(peer="198.51.100.1").status] == [200, 418]  # together
    clock.advance(60)
    assert asked(headers=of["1"]).status == 200
    by_address = made("1/minute", rules, {"clock": FakeClock()})
    clients = [[("X-Forwarded-For", f"198.51.100.{number}")] for number in (1, 1, 2)]
    assert [by_address(headers=client).status for client in clients] == [200, 418, 200]


@in_every_framework
def test_it_shares_the_store_and_the_observers_of_the_middleware(made: Made) -> None:
    """Two processes, as far as one can tell: each has an app of its own, and both have one store."""
    store = MemoryStore()
    verdicts: list[Verdict] = []

    def observe(request: Any, verdict: Verdict) -> None:
        verdicts.append(verdict)

    options = {"clock": FakeClock(), "store": store, "observers": [observe]}
    one, other = (made("2/minute", NO_RULES, options, name="home") for _ in range(2))
    assert [one().status, other().status, one().status, other().status] == [200, 200, 429, 429]
    assert len(store) == 1
    told = [verdict.allowed for verdict in verdicts if verdict.rules]
    assert told == [True, True, False, False]


@in_every_framework
def test_a_switch_for_all(made: Made) -> None:
    asked = made("1/minute", NO_RULES, {"enabled": False})
    assert [asked().status for _ in range(3)] == [200] * 3
    asked = made("1/minute", enabled=False)
    assert [asked().status for _ in range(3)] == [200] * 3
    assert asked().header("RateLimit") is None


@in_every_framework
def test_two_limits_of_one_rate_are_two_counters(made: Made) -> None:
    first = made("1/minute", NO_RULES, {"clock": FakeClock()}, name="one")
    second = made("1/minute", NO_RULES, {"clock": FakeClock()}, name="two")
    assert [first().status, second().status, first().status] == [200, 200, 429]
    assert json.loads(first().body or b"{}") != {}


def own_answer(request: Any, verdict: Verdict) -> Any:
    return verdict.denied_by and verdict.denied_by.name


@pytest.mark.parametrize("made", [on_flask, on_starlette, on_fastapi, on_django, on_async_django])
def test_a_denied_answer_of_the_app_s_own(made: Made) -> None:
    def denied(request: Any, verdict: Verdict) -> Any:
        said = {"path": getattr(request, "path", None) or request.url.path}
        if made is on_flask:
            return said, 418
        if made in (on_django, on_async_django):
            return JsonResponse(said, status=418)
        return JSONResponse(said, 418)

    asked = made("1/minute", clock=FakeClock(), denied=denied)
    asked()
    answer = asked()
    assert (answer.status, json.loads(answer.body)) == (418, {"path": "/"})
    assert answer.header("Retry-After") == "60"
    assert answer.header("RateLimit") == '"1/minute by ip";r=0;t=60'


def test_the_views_of_a_blueprint_count_together() -> None:
    app = Flask("site")
    blueprint = Blueprint("api", __name__, url_prefix="/api")
    diana.flask.rate_limit("2/minute", clock=FakeClock())(blueprint)
    blueprint.get("/one", endpoint="one")(lambda: "one")
    blueprint.get("/two", endpoint="two")(lambda: "two")
    app.register_blueprint(blueprint)
    app.get("/")(lambda: "hello")
    paths = ["/api/one", "/api/two", "/api/one", "/", "/"]
    assert [ask_wsgi(app, path).status for path in paths] == [200, 200, 429, 200, 200]
    assert ask_wsgi(app, "/api/one", method="HEAD").body == b""


def test_method_views_of_flask() -> None:
    clock = FakeClock()

    @diana.flask.rate_limit("2/minute", clock=clock)
    class Whole(MethodView):
        def get(self) -> str:
            return "hello"

        def post(self) -> str:
            return "hello"

    class Listed(MethodView):
        decorators = [diana.flask.rate_limit("2/minute", clock=clock)]

        def get(self) -> str:
            return "hello"

    class Single(MethodView):
        @diana.flask.rate_limit("1/minute", clock=clock)
        def post(self) -> str:
            return "hello"

        def get(self) -> str:
            return "hello"

    app = Flask("site")
    for kind in (Whole, Listed, Single):
        name = kind.__name__.lower()
        app.add_url_rule(f"/{name}", view_func=kind.as_view(name))
    asked = [("GET", "/whole"), ("POST", "/whole"), ("GET", "/whole")]
    asked += [("GET", "/listed")] * 3 + [("POST", "/single")] * 2 + [("GET", "/single")] * 2
    statuses = [ask_wsgi(app, path, method=method).status for method, path in asked]
    assert statuses == [200, 200, 429, 200, 200, 429, 200, 429, 200, 200]


def test_two_limits_on_a_view_are_all_or_nothing() -> None:
    app, clock = Flask("site"), FakeClock()

    @app.get("/")
    @diana.flask.rate_limit("3/hour", clock=clock)
    @diana.flask.rate_limit("1/minute", clock=clock, actor="header X-User")
    def home() -> str:
        return "hello"

    of = {name: [("X-User", name)] for name in "abc"}
    assert ask_wsgi(app, headers=of["a"]).lines("RateLimit") == [
        '"3/hour by ip";r=2;t=1200',
        '"1/minute by header X-User";r=0;t=60',
    ]
    names = ["a", "a", "b", "c", "b"]
    assert [ask_wsgi(app, headers=of[name]).status for name in names] == [429, 429, 200, 200, 429]


def test_an_async_view_of_flask() -> None:
    app = Flask("site")

    @app.get("/")
    @diana.flask.rate_limit("1/minute", clock=FakeClock())
    async def home() -> str:
        return "hello"

    assert [ask_wsgi(app).status for _ in range(2)] == [200, 429]


def test_an_error_handler_of_flask_s_is_not_needed_and_errors_are_counted() -> None:
    app = Flask("site")

    @app.get("/")
    @diana.flask.rate_limit("1/minute", clock=FakeClock())
    def home() -> str:
        raise RuntimeError

    @app.errorhandler(RuntimeError)
    def failed(error: RuntimeError) -> FlaskResponse:
        return FlaskResponse(request.environ["diana.verdict"].explain(), 500)

    assert [ask_wsgi(app).status for _ in range(2)] == [500, 429]


def test_class_based_views_of_django() -> None:
    clock = FakeClock()

    @diana.django.rate_limit("2/minute", clock=clock)
    class Whole(View):  # type: ignore[misc]
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

        post = get

    class Late(View):  # type: ignore[misc]
        @diana.django.rate_limit("2/minute", clock=clock)
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    @method_decorator(diana.django.rate_limit("2/minute", clock=clock), name="dispatch")
    class Decorated(View):  # type: ignore[misc]
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    @diana.django.rate_limit("2/minute", clock=clock)
    class Async(View):  # type: ignore[misc]
        async def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    for kind in (Whole, Late, Decorated, Async):
        for handler in (WSGIHandler, ASGIHandler):
            clock.advance(60)
            asked = site(kind.as_view(), None, None, handler)
            answers = [asked() for _ in range(3)]
            assert [answer.status for answer in answers] == [200, 200, 429]
            assert answers[0].header("RateLimit") == '"2/minute by ip";r=1;t=30'


def test_a_sync_view_in_an_async_stack_of_django() -> None:
    @diana.django.rate_limit("1/minute", actor="account")
    def home(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.diana.rules[0].name)

    options = {"clock": FakeClock(), "account": "diana.django.user"}
    asked = site(home, NO_RULES, options, ASGIHandler)
    statuses = [asked(headers=[("X-User", user)]).status for user in "112"]
    assert statuses == [200, 429, 200]


@pytest.mark.parametrize("by_class", [True, False])
def test_throttles_of_rest_framework(by_class: bool) -> None:
    clock = FakeClock()
    throttle = diana.rest_framework.rate_limit("2/minute", clock=clock)

    class Items(APIView):  # type: ignore[misc]
        authentication_classes = ()
        throttle_classes = [throttle]

        def get(self, request: Any) -> RestResponse:
            return RestResponse({"user": str(request.user)})

    @api_view()  # type: ignore[untyped-decorator]
    @throttle_classes([throttle])  # type: ignore[untyped-decorator]
    def items(request: Any) -> RestResponse:
        return RestResponse({})

    asked = site(Items.as_view() if by_class else items, NO_RULES, {"clock": clock})
    headers = [("Accept", "application/json")]
    first = asked(headers=headers)
    assert (first.status, first.header("RateLimit")) == (200, '"2/minute by ip";r=1;t=30')
    assert asked(headers=headers).status == 200
    denied = asked(headers=headers)
    assert (denied.status, denied.header("Retry-After")) == (429, "30")
    assert denied.header("RateLimit") == '"2/minute by ip";r=0;t=30'
    assert denied.header("Content-Type") == "application/json"
    assert "throttled" in json.loads(denied.body)["detail"]


def test_a_throttle_class_of_one_s_own() -> None:
    class ByKey(diana.rest_framework.RateLimitThrottle):
        rate = "1/minute"
        name = "by key"
        options = {"clock": FakeClock()}

        @staticmethod
        def actor(request: Any) -> str:
            return str(request.query_params["key"])

    class Items(APIView):  # type: ignore[misc]
        authentication_classes = ()
        throttle_classes = [ByKey]

        def get(self, request: Any) -> RestResponse:
            return RestResponse({})

    asked = site(Items.as_view(), None, None)
    assert [asked(f"/?key={key}").status for key in "aab"] == [200, 429, 200]

    class Empty(diana.rest_framework.RateLimitThrottle):
        pass

    with pytest.raises(ConfigError, match='Empty has no rate; write rate = "10/minute"'):
        Empty().allow_request(None, Items())


def test_endpoints_of_starlette() -> None:
    clock = FakeClock()

    @diana.starlette.rate_limit("2/minute", clock=clock)
    class Whole(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("hello")

        post = get

    class Single(HTTPEndpoint):
        @diana.starlette.rate_limit("1/minute", clock=clock)
        async def post(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("hello")

    @diana.starlette.rate_limit("1/minute", clock=clock)
    def plain(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.scope["diana"].rules[0].name)

    app = Starlette(
        routes=[Route("/whole", Whole), Route("/single", Single), Route("/plain", plain)]
    )
    first = ask(app, "/whole")
    assert first.header("ratelimit") == '"2/minute by ip";r=1;t=30'
    statuses = [ask(app, "/whole", method=method).status for method in ("POST", "GET")]
    assert statuses == [200, 429]
    assert [ask(app, "/single", method="POST").status for _ in range(2)] == [200, 429]
    assert ask(app, "/plain").body == b"1/minute by ip"
    assert ask(app, "/plain", method="HEAD").body == b""
    assert ask(app, "/plain").status == 429


def test_a_websocket_route_of_starlette() -> None:
    import asyncio

    from starlette.websockets import WebSocket

    @diana.starlette.rate_limit("1/minute", clock=FakeClock())
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    app = Starlette(routes=[WebSocketRoute("/", talk)])

    async def main() -> list[str]:
        said = []
        for _ in range(2):
            socket = Socket(app)
            await socket.call
            said.append(socket.sent[0]["type"])
        return said

    assert asyncio.run(main()) == ["websocket.accept", "websocket.close"]


def test_handlers_of_litestar_count_by_themselves_unless_they_have_one_name() -> None:
    clock = FakeClock()
    own = diana.litestar.rate_limit("1/minute", clock=clock)

    @litestar.get("/one", sync_to_thread=False)
    def one() -> str:
        return "one"

    @litestar.get("/two", sync_to_thread=False)
    def two() -> str:
        return "two"

    router = litestar.Router("/api", guards=[own], route_handlers=[one, two])
    app: Any = litestar.Litestar([router], openapi_config=None)
    paths = ["/api/one", "/api/one", "/api/two", "/api/two"]
    assert [ask(app, path).status for path in paths] == [200, 429, 200, 429]


def test_views_of_one_name_count_by_themselves() -> None:
    app = Flask("site")

    def add(path: str) -> None:
        @app.get(path, endpoint=path)
        @diana.flask.rate_limit("1/minute")
        def view() -> str:
            return path

    add("/one")
    add("/two")
    paths = ["/one", "/two", "/one", "/two"]
    assert [ask_wsgi(app, path).status for path in paths] == [200, 200, 429, 429]


def test_what_is_no_view_is_refused() -> None:
    class Thing:
        pass

    for rate_limit in (diana.flask.rate_limit, diana.django.rate_limit, diana.starlette.rate_limit):
        with pytest.raises(ConfigError, match="Thing is no"):
            rate_limit("1/minute")(Thing)


def test_fastapi_s_dependency_with_a_name_shares_the_store() -> None:
    from fastapi import Depends

    store, clock = MemoryStore(), FakeClock()

    def made() -> Any:
        app = FastAPI()
        limit = diana.fastapi.RateLimit("1/minute", name="home")

        @app.get("/", dependencies=[Depends(limit)])
        async def home() -> str:
            return "hello"

        return Asgi(app, NO_RULES, store=store, clock=clock)

    one, other = made(), made()
    assert [ask(one).status, ask(other).status] == [200, 429]


def test_settings_that_change_live_reach_routes() -> None:
    import asyncio

    app = Starlette()
    middleware = Asgi(app, policy(NOWHERE), clock=FakeClock())

    @diana.starlette.rate_limit("1/minute")
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    app.router.routes.append(Route("/", home))
    assert [ask(middleware).status for _ in range(2)] == [200, 429]
    changed = policy(f"response: {{status: 420}}\n{NOWHERE}")
    middleware.guard._evaluator.swap(changed)
    assert asyncio.run(aask(middleware)).status == 420  # and what was counted is kept
