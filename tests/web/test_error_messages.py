"""Common mistakes with middlewares and limits on routes: every message names what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import diana.fastapi
import diana.flask
import diana.litestar
import diana.starlette
from diana import ConfigError, Guard
from diana.asgi import RateLimitMiddleware as Asgi
from diana.rules.loading import rules_from_bytes
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web import django_site  # noqa: F401  # sets Django up
from tests.web.calls import ask, ask_wsgi

import diana.django  # isort: skip
import diana.rest_framework  # isort: skip

POLICY = rules_from_bytes(b"limits: [{url: /, rules: [{unit: minute, rpu: 5}]}]")

IN_MIDDLEWARES: list[tuple[Any, str]] = [
    # `rules=` of a middleware; what is said, `{here}` being the folder
    (
        "100/minute",
        "rules= must be a rules file, a mapping or a Policy (got '100/minute', a limit); "
        'write rules={"url": "/", "rules": [{"actor": "ip", "unit": "minute", "rpu": 100}]}',
    ),
    (5, 'rules= must be a rules file, a mapping or a Policy (got 5); write rules="diana.yaml"'),
    (
        {"url": "/", "rules": [{"unit": "minute", "rpu": "5"}]},
        "rules: rules[0].rpu: rpu must be a number (got '5', a text in quotes); write rpu: 5",
    ),
    (
        "diana.yaml",
        "diana.yaml: cannot be read: No such file or directory (as {here}/diana.yaml); a relative path is looked for in the folder in "
        "which the server was started: write rules=Path(__file__).with_name('diana.yaml') or an absolute path",
    ),
]


def opened_by_asgi(**options: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    ask(Asgi(app, **options))


def opened_by_wsgi(**options: Any) -> None:
    Wsgi(lambda environ, start_response: [], **options)


def opened_by_django(**options: Any) -> None:
    with override_settings(**{f"DIANA_{name.upper()}": value for name, value in options.items()}):
        diana.django.RateLimitMiddleware(lambda request: HttpResponse())


MIDDLEWARES = [opened_by_asgi, opened_by_wsgi, opened_by_django]


@pytest.mark.parametrize("opened", MIDDLEWARES)
@pytest.mark.parametrize(("rules", "said"), IN_MIDDLEWARES)
def test_wrong_rules_of_a_middleware(
    opened: Any, rules: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        opened(rules=rules)
    assert str(caught.value) == said.replace("{here}", str(tmp_path))


@pytest.mark.parametrize("opened", MIDDLEWARES)
def test_a_guard_in_place_of_rules(opened: Any) -> None:
    with pytest.raises(ConfigError, match=r"^rules= must be .*write guard=, without rules=$"):
        opened(rules=Guard(POLICY))


@pytest.mark.parametrize("opened", MIDDLEWARES)
def test_observers_that_are_no_list(opened: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"must be a list \(got 'prometheus'\); write .* ?= ?\['prometheus'\]$"
    ):
        opened(rules=POLICY, observers="prometheus")


def denied_by_a_dict(request: Any, verdict: Any) -> Any:
    return {"error": "slow down"}


ONE = rules_from_bytes(b"url: /\nrules: [{unit: hour, rpu: 1}]")
NOT_A_RESPONSE = r"^denied=? must return .*\(got \{'error': 'slow down'\}\); write return "


def test_denied_that_returns_no_response() -> None:
    options: Any = {"denied": denied_by_a_dict}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    asgi = Asgi(app, ONE, **options)
    ask(asgi)
    with pytest.raises(ConfigError, match=NOT_A_RESPONSE):
        ask(asgi)

    def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return []

    wsgi = Wsgi(wsgi_app, ONE, **options)
    ask_wsgi(wsgi)
    with pytest.raises(ConfigError, match=NOT_A_RESPONSE):
        ask_wsgi(wsgi)
    with override_settings(DIANA_RULES=ONE, DIANA_DENIED=denied_by_a_dict):
        django = diana.django.RateLimitMiddleware(lambda request: HttpResponse())
        django(RequestFactory().get("/"))
        with pytest.raises(ConfigError, match=NOT_A_RESPONSE):
            django(RequestFactory().get("/"))


def test_denied_of_a_route_that_returns_no_response() -> None:
    api = FastAPI()
    limit = diana.fastapi.RateLimit("1/hour", denied=denied_by_a_dict)
    api.get("/", dependencies=[Depends(limit)])(lambda: "hello")

    @diana.starlette.rate_limit("1/hour", denied=denied_by_a_dict)
    async def endpoint(request: StarletteRequest) -> PlainTextResponse:
        return PlainTextResponse("hello")

    for app in (api, Starlette(routes=[Route("/", endpoint)])):
        ask(app)
        with pytest.raises(ConfigError, match=NOT_A_RESPONSE):
            ask(app)

    @diana.django.rate_limit("1/hour", denied=denied_by_a_dict)
    def view(request: Any) -> HttpResponse:
        return HttpResponse()

    view(RequestFactory().get("/"))
    with pytest.raises(ConfigError, match=NOT_A_RESPONSE):
        view(RequestFactory().get("/"))


@pytest.mark.parametrize(
    "module",
    [
        diana.flask,
        diana.django,
        diana.starlette,
        diana.fastapi,
        diana.litestar,
        diana.rest_framework,
    ],
    ids=lambda module: module.__name__,
)
def test_a_decorator_without_parentheses(module: Any) -> None:
    def view(request: Any) -> None: ...

    with pytest.raises(ConfigError) as caught:
        module.rate_limit(view)
    assert str(caught.value).startswith(
        '@rate_limit needs a limit; write @rate_limit("100/minute"), or'
    )


def test_a_dependency_without_depends() -> None:
    limit: Any = diana.fastapi.RateLimit("1/minute")
    with pytest.raises(ConfigError) as caught:
        FastAPI().get("/", dependencies=[limit])(lambda: "hello")
    assert str(caught.value) == (
        "dependencies= must be a list of Depends (got RateLimit); "
        'write dependencies=[Depends(RateLimit("10/minute"))]'
    )
