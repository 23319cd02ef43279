"""A limit on a route beside the rules of the middleware: a request that one of them denies is charged by none, and reported once."""

from __future__ import annotations

import json
from typing import Any

import litestar
import pytest
from fastapi import Depends, FastAPI
from flask import Flask
from flask import Response as FlaskResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Mount, Route

import diana.fastapi
import diana.flask
import diana.litestar
import diana.starlette
from diana import ConfigError, Policy, Verdict
from diana.asgi import RateLimitMiddleware as Asgi
from diana.testing import FakeClock
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web import django_site  # noqa: F401  # sets Django up
from tests.web.calls import Answer, ask, ask_wsgi, hello, policy
from tests.web.test_routes import (
    FRAMEWORKS,
    Asked,
    Made,
    on_async_django,
    on_django,
    on_fastapi,
    on_flask,
    on_litestar,
    on_starlette,
    site,
)

import diana.django  # isort: skip
import diana.rest_framework  # isort: skip
from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.http import HttpRequest, HttpResponse, JsonResponse  # isort: skip
from django.test import override_settings  # isort: skip
from django.urls import path  # isort: skip
from rest_framework.response import Response as RestResponse  # isort: skip
from rest_framework.views import APIView  # isort: skip

SITE = policy("limits: [{url: /, rules: [{name: site, actor: ip, unit: hour, rpu: 100, algo: W}]}]")


def on_rest_framework(
    limit: str, rules: Policy | None = None, middleware: Any = None, **options: Any
) -> Asked:
    return _rest_framework(WSGIHandler, limit, rules, middleware, options)


def on_async_rest_framework(
    limit: str, rules: Policy | None = None, middleware: Any = None, **options: Any
) -> Asked:
    return _rest_framework(ASGIHandler, limit, rules, middleware, options)


def _rest_framework(handler: Any, limit: str, rules: Any, middleware: Any, options: Any) -> Asked:
    class Items(APIView):  # type: ignore[misc]
        authentication_classes = ()
        throttle_classes = [diana.rest_framework.rate_limit(limit, **options)]

        def get(self, request: Any) -> RestResponse:
            return RestResponse({})

    return site(Items.as_view(), rules, middleware, handler)


ALL = [*FRAMEWORKS, on_rest_framework, on_async_rest_framework]
in_every_framework = pytest.mark.parametrize("made", ALL)


def left(answer: Answer, name: str) -> int:
    """What a rule has left, by the header lines of an answer."""
    items = ", ".join(answer.lines("RateLimit")).split(", ")
    (item,) = (item for item in items if item.startswith(f'"{name}"'))
    return int(item.split(";r=")[1].split(";")[0])


@in_every_framework
def test_what_the_route_denies_the_middleware_does_not_charge(made: Made) -> None:
    clock = FakeClock()
    asked = made("1/minute", SITE, {"clock": clock}, name="route")
    answers = [asked() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 429, 429, 429]
    assert left(answers[0], "site") == 99
    clock.advance(60)
    assert left(asked(), "site") == 98


@in_every_framework
def test_a_denied_response_announces_the_limit_that_denies(made: Made) -> None:
    asked = made("1/minute", SITE, {"clock": FakeClock()}, name="route")
    asked()
    denied = asked()
    assert denied.header("RateLimit") == '"route";r=0;t=60'
    assert denied.header("RateLimit-Policy") == '"route";q=1;w=60'
    assert denied.header("Retry-After") == "60"


@in_every_framework
def test_a_request_is_reported_once(made: Made) -> None:
    verdicts: list[Verdict] = []

    def observe(request: Any, verdict: Verdict) -> None:
        verdicts.append(verdict)

    asked = made("2/minute", SITE, {"clock": FakeClock(), "observers": [observe]}, name="route")
    assert [asked().status for _ in range(4)] == [200, 200, 429, 429]
    assert [verdict.allowed for verdict in verdicts] == [True, True, False, False]
    assert [[rule.name for rule in verdict.rules] for verdict in verdicts] == [
        ["site", "route"]
    ] * 4
    assert [verdict.decisions[0].remaining for verdict in verdicts] == [99, 98, 98, 98]
    denied = verdicts[-1]
    assert (denied.denied_by and denied.denied_by.name, denied.delay) == ("route", 0)
    assert denied.denial is denied.decisions[1]


@in_every_framework
def test_several_limits_of_the_route_are_reported_once_too(made: Made) -> None:
    """The denial of an inner limit refunds those around it and the middleware."""
    verdicts: list[Verdict] = []
    options = {
        "clock": FakeClock(),
        "observers": [lambda request, verdict: verdicts.append(verdict)],
    }
    asked = made("9/minute; 1/hour", SITE, options, name="route")
    assert [asked().status for _ in range(3)] == [200, 429, 429]
    assert [verdict.allowed for verdict in verdicts] == [True, False, False]
    assert verdicts[-1].decisions[0].remaining == 99


@in_every_framework
def test_a_limit_apart_from_the_middleware_refunds_it_too(made: Made) -> None:
    seen: list[bool] = []
    apart = {"clock": FakeClock(), "observers": [lambda _, verdict: seen.append(verdict.allowed)]}
    clock = FakeClock()
    asked = made("1/minute", SITE, {"clock": clock}, name="route", **apart)
    assert [asked().status for _ in range(3)] == [200, 429, 429]
    assert seen == [True, False, False]
    apart["clock"].advance(60)  # type: ignore[attr-defined]
    assert left(asked(), "site") == 98


@in_every_framework
def test_slots_of_the_middleware_are_released(made: Made) -> None:
    rules = policy("limits: [{url: /, rules: [{name: site, algo: C, most: 1}]}]")
    asked = made("1/minute", rules, {"clock": FakeClock()}, name="route")
    assert [asked().status for _ in range(4)] == [200, 429, 429, 429]


@in_every_framework
def test_what_was_refunded_is_not_settled_too(made: Made) -> None:
    """`charge_on` gives a charge back as well: both at once would give back what other requests were charged."""
    clock = FakeClock()
    rules = policy(
        "limits: [{url: /, rules: [{name: site, unit: hour, rpu: 9, algo: W},"
        " {name: failures, unit: hour, rpu: 9, algo: W, charge_on: [2xx]}]}]"
    )
    asked = made("1/minute", rules, {"clock": clock}, name="route")
    assert [asked().status for _ in range(4)] == [200, 429, 429, 429]
    clock.advance(60)
    answer = asked()
    assert (left(answer, "site"), left(answer, "failures")) == (7, 7)


def own(made: Made) -> Any:
    """An answer of the application's own, as each framework's middleware takes it."""

    def denied(request: Any, verdict: Verdict) -> Any:
        name = verdict.denied_by.name if verdict.denied_by else None
        content = {"by": name}
        if made in (on_django, on_async_django, on_rest_framework, on_async_rest_framework):
            return JsonResponse(content, status=418)
        if made is on_flask:
            assert request.environ["PATH_INFO"] == "/"
            return FlaskResponse(json.dumps(content), 418, mimetype="application/json")
        assert request.scope["path"] == "/"
        return JSONResponse(content, 418)

    return denied


@in_every_framework
def test_the_middleware_s_denied_answers_for_routes(made: Made) -> None:
    verdicts: list[Verdict] = []
    options = {
        "clock": FakeClock(),
        "denied": own(made),
        "observers": [lambda request, verdict: verdicts.append(verdict)],
    }
    asked = made("1/minute", SITE, options, name="route")
    assert asked().status == 200
    denied = asked()
    assert (denied.status, json.loads(denied.body)) == (418, {"by": "route"})
    assert denied.header("Retry-After") == "60"
    assert denied.header("RateLimit") == '"route";r=0;t=60'
    assert denied.header("Cache-Control") == "no-store"
    assert denied.header("Content-Length") in (None, str(len(denied.body)))
    assert [verdict.allowed for verdict in verdicts] == [True, False]


@in_every_framework
def test_the_middleware_s_denied_may_leave_it_to_diana(made: Made) -> None:
    options = {"clock": FakeClock(), "denied": lambda request, verdict: None}
    asked = made("1/minute", SITE, options, name="route")
    asked()
    denied = asked()
    assert denied.status == 429
    assert "detail" in json.loads(denied.body)


@pytest.mark.parametrize("made", [on_flask, on_starlette, on_fastapi, on_django, on_async_django])
def test_a_denied_of_the_route_wins(made: Made) -> None:
    def of_route(request: Any, verdict: Verdict) -> Any:
        if made in (on_django, on_async_django):
            return HttpResponse("of the route", status=420)
        return ("of the route", 420) if made is on_flask else JSONResponse("of the route", 420)

    options = {"clock": FakeClock(), "denied": own(made)}
    asked = made("1/minute", SITE, options, denied=of_route)
    asked()
    assert asked().status == 420
    worded = made("1/minute", SITE, options, body="slow down", name="worded")
    worded()
    assert (worded().status, worded().body) == (429, b"slow down")


@pytest.mark.parametrize("handler", [WSGIHandler, ASGIHandler])
def test_diana_denied_answers_without_the_middleware_too(handler: Any) -> None:
    @diana.django.rate_limit("1/minute", clock=FakeClock(), name="route")
    def home(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    asked = site(home, None, {"denied": own(on_django)}, handler)
    assert [asked().status for _ in range(2)] == [200, 418]


def test_an_exception_handler_of_the_app_s_wins() -> None:
    """It is for limits on routes, and the middleware's `denied` is for all."""

    async def handled(request: Any, error: Any) -> JSONResponse:
        return JSONResponse("handled", 420)

    app = FastAPI(exception_handlers={diana.fastapi.RateLimitExceeded: handled})
    app.get("/")(diana.fastapi.rate_limit("1/minute")(lambda: "hello"))
    some = Asgi(app, SITE, clock=FakeClock(), denied=own(on_fastapi))
    assert [ask(some).status for _ in range(2)] == [200, 420]

    def handled_too(request: Any, error: Any) -> litestar.Response[str]:
        return litestar.Response("handled", status_code=420)

    @litestar.get("/", guards=[diana.litestar.rate_limit("1/minute")], sync_to_thread=False)
    def home() -> str:
        return "hello"

    handlers: Any = {diana.litestar.RateLimitExceeded: handled_too}
    other = litestar.Litestar([home], exception_handlers=handlers, openapi_config=None)
    some = Asgi(other, SITE, clock=FakeClock(), denied=own(on_litestar))  # type: ignore[arg-type]
    assert [ask(some).status for _ in range(2)] == [200, 420]


def test_any_asgi_app_may_answer_for_a_route() -> None:
    """Not only a Response of Starlette."""
    for made in (on_starlette, on_fastapi, on_litestar):
        options = {"clock": FakeClock(), "denied": lambda request, verdict: hello}
        asked = made("1/minute", SITE, options, name="route")
        asked()
        denied = asked()
        assert (denied.status, denied.body) == (200, b"hello")
        assert denied.header("RateLimit") == '"route";r=0;t=60'


@in_every_framework
def test_a_denied_that_returns_something_else_is_named(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"clock": FakeClock(), "denied": lambda *_: {"error": "slow down"}}
    asked = made("1/minute", SITE, options)
    asked()
    said = ""
    try:
        said = f"{asked().status}"
    except ConfigError as error:  # where the framework lets errors through
        said = str(error)
    if said == "500":  # and where it logs them, and answers
        said = "".join(str(record.exc_info and record.exc_info[1]) for record in caplog.records)
    assert "denied" in said
    assert "{'error': 'slow down'}" in said


def test_a_stream_is_denied_like_any_other() -> None:
    async def pieces() -> Any:
        for number in range(3):
            yield str(number)

    @diana.starlette.rate_limit("1/minute", name="route")
    async def stream(request: Request) -> StreamingResponse:
        return StreamingResponse(pieces())

    clock = FakeClock()
    verdicts: list[bool] = []
    app = Asgi(
        Starlette(routes=[Route("/", stream)]),
        SITE,
        clock=clock,
        observers=[lambda _, verdict: verdicts.append(verdict.allowed)],
    )
    answers = [ask(app) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 429, 429]
    assert answers[0].body == b"012"
    clock.advance(60)
    assert left(ask(app), "site") == 98
    assert verdicts == [True, False, False, True]


def test_a_stream_of_wsgi_that_begins_late_is_reported_once() -> None:
    @diana.flask.rate_limit("1/minute", name="route")
    def limited() -> str:
        return "hello"

    flask = Flask("site")
    flask.get("/")(limited)

    def late(environ: Any, start_response: Any) -> Any:
        yield from flask.wsgi_app(environ, start_response)

    verdicts: list[bool] = []
    clock = FakeClock()
    app = Wsgi(
        late, SITE, clock=clock, observers=[lambda _, verdict: verdicts.append(verdict.allowed)]
    )
    assert [ask_wsgi(app).status for _ in range(3)] == [200, 429, 429]
    assert verdicts == [True, False, False]
    clock.advance(60)
    assert left(ask_wsgi(app), "site") == 98


def test_a_middleware_around_another_one_is_refunded() -> None:
    """Of a mounted application, for instance."""
    verdicts: list[Verdict] = []

    def observe(request: Any, verdict: Verdict) -> None:
        verdicts.append(verdict)

    clock = FakeClock()
    strict = policy("limits: [{url: /, rules: [{name: inner, unit: minute, rpu: 1, algo: W}]}]")
    mounted = Asgi(hello, strict, clock=clock, observers=[observe])
    app = Asgi(Starlette(routes=[Mount("/api", mounted)]), SITE, clock=clock, observers=[observe])
    assert [ask(app, "/api/x").status for _ in range(4)] == [200, 503, 503, 503]
    assert [verdict.allowed for verdict in verdicts] == [True, False, False, False]
    clock.advance(60)
    assert left(ask(app, "/api/x"), "site") == 98

    def wsgi_hello(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"hello"]

    clock = FakeClock()
    some = Wsgi(Wsgi(wsgi_hello, strict, clock=clock), SITE, clock=clock)
    assert [ask_wsgi(some).status for _ in range(4)] == [200, 503, 503, 503]
    clock.advance(60)
    assert left(ask_wsgi(some), "site") == 98


def test_the_middleware_of_asgi_around_a_site_of_django() -> None:
    @diana.django.rate_limit("1/minute", name="route")
    def home(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    class Urls:
        urlpatterns = [path("", home)]

    clock = FakeClock()
    app = Asgi(ASGIHandler(), SITE, clock=clock, denied=own(on_starlette))

    def asked() -> Answer:
        with override_settings(ROOT_URLCONF=Urls):
            return ask(app)

    assert [asked().status for _ in range(3)] == [200, 418, 418]
    clock.advance(60)
    assert left(asked(), "site") == 98


def test_prometheus_counts_a_request_once() -> None:
    from prometheus_client import CollectorRegistry

    from diana.telemetry.prometheus import PrometheusObserver

    registry = CollectorRegistry()
    clock = FakeClock()
    app = FastAPI()
    limit = diana.fastapi.RateLimit(
        "2/minute", name="route", clock=clock, observers=[PrometheusObserver(registry)]
    )
    app.get("/", dependencies=[Depends(limit)])(lambda: "hello")
    some = Asgi(app, SITE, clock=clock, observers=[PrometheusObserver(registry)])
    assert [ask(some).status for _ in range(5)] == [200, 200, 429, 429, 429]

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("diana_requests_total", outcome="allowed") == 2
    assert value("diana_requests_total", outcome="denied") == 3
    assert value("diana_decisions_total", rule="route", outcome="denied") == 3
    assert value("diana_decisions_total", rule="site", outcome="allowed") == 5
