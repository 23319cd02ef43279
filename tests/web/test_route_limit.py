"""Which views a limit counts apart, and what a client reads of several limits on one view."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
from flask import Flask
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import diana.fastapi
import diana.flask
import diana.litestar
import diana.starlette
from diana import ConfigError
from diana.testing import FakeClock
from diana.web.route_limit import RouteLimit
from diana.web.view_limits import LONGEST_NAME, ViewLimits, marked, name_of_view
from tests.web import django_site  # noqa: F401  # sets Django up
from tests.web.calls import Answer, ask, ask_wsgi

import diana.django  # isort: skip
import diana.rest_framework  # isort: skip
from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.http import HttpRequest, HttpResponse  # isort: skip
from django.test import override_settings  # isort: skip
from django.urls import path  # isort: skip
from django.utils.decorators import method_decorator  # isort: skip
from django.views import View  # isort: skip


def limits() -> ViewLimits[RouteLimit]:
    return ViewLimits(RouteLimit, "1/minute", {})


def made() -> Any:
    def view() -> None: ...

    return view


RATE_LIMITS: dict[str, Callable[..., Any]] = {
    "RateLimit": diana.fastapi.RateLimit,
    **{
        module.__name__: module.rate_limit
        for module in (
            diana.django,
            diana.fastapi,
            diana.flask,
            diana.litestar,
            diana.rest_framework,
            diana.starlette,
        )
    },
}


@pytest.mark.parametrize("made", RATE_LIMITS.values(), ids=RATE_LIMITS)
@pytest.mark.parametrize("option", [{"rpu": 2}, {"unit": "hour"}, {"most": 3}])
def test_a_number_beside_the_limit_that_says_it_is_refused(
    made: Callable[..., Any], option: dict[str, Any]
) -> None:
    (name,) = option
    for limit in ("5/minute", "5 at once"):
        with pytest.raises(ConfigError, match=f"{name}= must not stand beside a limit"):
            made(limit, **option)


@pytest.mark.parametrize(
    ("option", "statuses"),
    [
        ({"deny": {"ip": "203.0.113.9"}}, [403, 403]),
        ({"only": {"ip": "10.0.0.1"}}, [200, 200]),
        ({"overrides": {"203.0.113.9": {"rpu": 2}}}, [200, 200]),
        ({"mode": "shadow"}, [200, 200]),
        ({}, [200, 429]),
    ],
)
def test_fields_of_a_rule_are_options_of_a_route_limit(
    option: dict[str, Any], statuses: list[int]
) -> None:
    @diana.starlette.rate_limit("1/hour", **option)
    async def view(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/", view)])
    assert [ask(app, client=("203.0.113.9", 5)).status for _ in statuses] == statuses


def test_one_decorator_on_views_that_a_function_makes_counts_each_by_itself() -> None:
    of = limits().of
    one, two = made(), made()
    assert of(one) is of(one)
    assert of(one) is not of(two)


def test_a_view_that_is_made_for_each_request_is_one_view() -> None:
    of = limits().of
    first = of(made())
    assert all(of(made()) is first for _ in range(3))
    view = made()
    assert of(partial(view, 1)) is of(partial(view, 2))


def test_a_method_is_one_view_whatever_decorators_make_of_it() -> None:
    class Base:
        def get(self) -> None: ...

    class Other(Base): ...

    def passing(view: Any) -> Any:
        @wraps(view)
        def passed(*args: Any) -> Any:
            return view(*args)

        return passed

    of = limits().of
    made_anew = [Base().get, partial(Base().get), passing(partial(Base().get))]
    assert len({of(view) for view in made_anew}) == 1
    assert of(Other().get) is not of(Base().get)
    # A second limit, as method_decorator makes it: of what the first one has decorated.
    twice = [marked(passing(kind().get)) for kind in (Base, Base, Other)]
    assert of(twice[0]) is of(twice[1])
    assert len({of(Base().get), of(twice[0]), of(twice[2])}) == 3


def test_names() -> None:
    def view() -> None: ...

    view.__name__ = "search"
    assert name_of_view(view) == f"{__name__}.test_names.<locals>.search"
    view.__name__ = "v" * 100
    assert len(name_of_view(view)) == LONGEST_NAME


TWO: dict[str, Any] = {"headers": ["ietf", "legacy"]}
RATES = [("3/hour", "100/day"), ("100/day", "3/hour")]


def on_flask(outer: Any, inner: Any) -> Any:
    app = Flask("site")
    app.get("/")(outer(inner(lambda: "hello")))
    return partial(ask_wsgi, app)


def on_starlette(outer: Any, inner: Any) -> Any:
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    return partial(ask, Starlette(routes=[Route("/", outer(inner(home)))]))


def on_a_class_of_starlette(outer: Any, inner: Any) -> Any:
    class Home(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("hello")

    Home.get = inner(Home.get)  # type: ignore[method-assign]
    return partial(ask, Starlette(routes=[Route("/", outer(Home))]))


def on_django(outer: Any, inner: Any) -> Any:
    def home(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    return django_site_of(outer(inner(home)), WSGIHandler)


def on_async_django(outer: Any, inner: Any) -> Any:
    async def home(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    return django_site_of(outer(inner(home)), ASGIHandler)


def django_site_of(view: Any, handler: Any) -> Any:
    class Urls:
        urlpatterns = [path("", view)]

    def asked(**request: Any) -> Answer:
        with override_settings(ROOT_URLCONF=Urls):
            return (ask_wsgi if handler is WSGIHandler else ask)(handler(), **request)

    return asked


FRAMEWORKS = [
    (on_flask, diana.flask),
    (on_starlette, diana.starlette),
    (on_a_class_of_starlette, diana.starlette),
    (on_django, diana.django),
    (on_async_django, diana.django),
]


@pytest.mark.parametrize(("made", "module"), FRAMEWORKS)
@pytest.mark.parametrize("rates", RATES)
def test_two_limits_say_each_header_line_once(
    made: Any, module: Any, rates: tuple[str, str]
) -> None:
    clock = FakeClock()
    asked = made(*(module.rate_limit(rate, clock=clock, **TWO) for rate in rates))
    answer = asked()
    assert answer.status == 200
    assert answer.header("X-RateLimit-Limit") == "3"
    assert answer.header("X-RateLimit-Remaining") == "2"
    told = ", ".join(answer.lines("RateLimit")).split(", ")
    assert sorted(item.split(";")[0] for item in told) == ['"100/day by ip"', '"3/hour by ip"']
    assert [asked().status for _ in range(3)] == [200, 200, 429]
    denied = asked()
    # The other limit is refunded, so it announces nothing.
    assert denied.lines("RateLimit") == ['"3/hour by ip";r=0;t=1200']
    assert denied.header("X-RateLimit-Limit") == "3"


def test_several_limits_by_method_decorator_count_each_class_by_itself() -> None:
    first, second = (diana.django.rate_limit("2/minute", clock=FakeClock()) for _ in range(2))

    @method_decorator([first, second], name="dispatch")
    class One(View):  # type: ignore[misc]
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    @method_decorator([first, second], name="dispatch")
    class Two(View):  # type: ignore[misc]
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("hello")

    sites = [django_site_of(kind.as_view(), WSGIHandler) for kind in (One, Two)]
    assert [asked().status for asked in sites * 3] == [200] * 4 + [429] * 2
