"""What the app has at hand: the verdict, an answer of its own to denied requests, and a switch that turns all of it off."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest
from flask import Flask, request
from flask import Response as FlaskResponse
from starlette.responses import JSONResponse

from diana import ConfigError, Verdict
from diana.asgi import RateLimitMiddleware as Asgi
from diana.testing import FakeClock
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web import django_site
from tests.web.calls import aask, ask, ask_wsgi, environ, hello, policy, scope
from tests.web.test_asgi import Socket
from tests.web.test_django import DIANA

from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.http import HttpRequest, HttpResponse, JsonResponse  # isort: skip
from django.test import override_settings  # isort: skip

ONE_A_MINUTE = policy("url: /\nrules: [{name: you, actor: ip, unit: minute, rpu: 1}]")


def flask_app() -> Flask:
    app = Flask("site")

    @app.get("/")
    def home() -> str:
        verdict: Verdict = request.environ["diana.verdict"]
        return f"{verdict.decisions[0].remaining} left"

    return app


def test_the_verdict_is_in_the_scope() -> None:
    found: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope["diana"])
        assert scope["diana.verdict"] is scope["diana"]
        await hello(scope, receive, send)

    limited = Asgi(app, ONE_A_MINUTE, clock=FakeClock())
    outside: list[Any] = []

    async def around(scope: Any, receive: Any, send: Any) -> None:
        await limited(scope, receive, send)
        outside.append(scope["diana.verdict"])
        assert scope["diana.verdict"] is scope["diana"]

    assert [ask(around).status for _ in range(2)] == [200, 503]
    assert [verdict.allowed for verdict in found] == [True]
    assert found[0].decisions[0].remaining == 0
    assert [verdict.allowed for verdict in outside] == [True, False]


def test_the_verdict_is_in_the_environ() -> None:
    app = flask_app()
    assert ask_wsgi(Wsgi(app.wsgi_app, ONE_A_MINUTE, clock=FakeClock())).body == b"0 left"


@pytest.mark.parametrize(("handler", "asked"), [(WSGIHandler, ask_wsgi), (ASGIHandler, ask)])
def test_the_verdict_is_on_django_s_request(
    handler: Any, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        return HttpResponse(f"{request.diana.decisions[0].remaining} left")

    pattern = django_site.urlpatterns[-1]
    monkeypatch.setattr(pattern, "callback", view)
    with override_settings(MIDDLEWARE=[DIANA], DIANA_RULES=ONE_A_MINUTE, DIANA_CLOCK=FakeClock()):
        made = handler()
    assert asked(made).body == b"0 left"


def test_a_denied_answer_of_the_app_s_own_over_asgi() -> None:
    def plain(request: Any, verdict: Verdict) -> Any:
        said = {"rule": verdict.denied_by and verdict.denied_by.name, "path": request.path}
        return JSONResponse(said, 418, {"Retry-After": "7"})

    async def later(request: Any, verdict: Verdict) -> Any:
        await asyncio.sleep(0)
        return plain(request, verdict)

    for denied in (plain, later):
        app = Asgi(hello, ONE_A_MINUTE, clock=FakeClock(), denied=denied)
        ask(app)
        answer = ask(app, "/sale")
        assert (answer.status, answer.body) == (418, b'{"rule":"you","path":"/sale"}')
        assert answer.header("content-type") == "application/json"
        assert answer.header("ratelimit") == '"you";r=0;t=60'
        assert answer.header("retry-after") == "7"  # its own
        assert answer.header("cache-control") == "no-store"
    app = Asgi(hello, ONE_A_MINUTE, clock=FakeClock(), denied=lambda request, verdict: None)
    assert [ask(app).status for _ in range(2)] == [200, 503]


def test_a_websocket_is_refused_as_before() -> None:
    def denied(request: Any, verdict: Verdict) -> Any:
        raise AssertionError("there is nothing to answer with")

    async def main() -> None:
        app = Asgi(hello, ONE_A_MINUTE, clock=FakeClock(), denied=denied)
        await aask(app)
        socket = Socket(app)
        await socket.call
        assert [message["type"] for message in socket.sent] == ["websocket.close"]

    asyncio.run(main())


def test_a_denied_answer_of_the_app_s_own_over_wsgi() -> None:
    def denied(request: Any, verdict: Verdict) -> Any:
        return FlaskResponse(f"{request.environ['PATH_INFO']} is busy", 418)

    app = Wsgi(flask_app().wsgi_app, ONE_A_MINUTE, clock=FakeClock(), denied=denied)
    ask_wsgi(app)
    answer = ask_wsgi(app, "/sale")
    assert (answer.status, answer.body) == (418, b"/sale is busy")
    assert answer.header("RateLimit") == '"you";r=0;t=60'
    assert answer.header("Retry-After") == "60"
    with pytest.raises(ConfigError, match="denied is 3; give a function of the request and the"):
        Wsgi(flask_app().wsgi_app, ONE_A_MINUTE, denied=3)  # type: ignore[arg-type]


def busy(request: HttpRequest, verdict: Verdict) -> HttpResponse:
    return JsonResponse({"path": request.path}, status=418)


async def busy_later(request: HttpRequest, verdict: Verdict) -> HttpResponse:
    return busy(request, verdict)


@pytest.mark.parametrize(("handler", "asked"), [(WSGIHandler, ask_wsgi), (ASGIHandler, ask)])
@pytest.mark.parametrize("denied", [busy, busy_later, f"{__name__}.busy"])
def test_a_denied_answer_of_the_site_s_own(handler: Any, asked: Any, denied: Any) -> None:
    if isinstance(denied, str):
        denied = "tests.web.test_verdict_and_denied_hook.busy"
    with override_settings(
        MIDDLEWARE=[DIANA],
        DIANA_RULES=ONE_A_MINUTE,
        DIANA_CLOCK=FakeClock(),
        DIANA_DENIED=denied,
    ):
        made = handler()
    asked(made)
    answer = asked(made, "/sale")
    assert (answer.status, answer.body) == (418, b'{"path": "/sale"}')
    assert answer.header("RateLimit") == '"you";r=0;t=60'


def test_nothing_is_limited_where_it_is_not_enabled() -> None:
    """Not even the rules are read."""
    app = Asgi(hello, "missing.yaml", enabled=False)
    assert [ask(app).status for _ in range(3)] == [200] * 3
    assert ask(app).header("ratelimit") is None
    made = Flask("site")
    made.get("/")(lambda: "hello")
    wsgi = Wsgi(made.wsgi_app, "missing.yaml", enabled=False)
    assert [ask_wsgi(wsgi).status for _ in range(3)] == [200] * 3
    wsgi.close()
    with override_settings(MIDDLEWARE=[DIANA], DIANA_RULES="missing.yaml", DIANA_ENABLED=False):
        handler = WSGIHandler()
    assert [ask_wsgi(handler).status for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("kind", ["ASGI", "WSGI"])
def test_a_verdict_at_hand_does_not_leave_requests_to_the_garbage_collector(kind: str) -> None:
    class Big(dict[str, Any]):
        """As a scope and an environ are, and one can tell when it is freed."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"hello"]

    made: Any = Asgi(hello, ONE_A_MINUTE, clock=FakeClock())
    if kind == "WSGI":
        made = Wsgi(app, ONE_A_MINUTE, clock=FakeClock())

    async def send(message: Any) -> None:
        pass

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            asked = Big(environ() if kind == "WSGI" else scope())
            freed = ref(asked)
            if kind == "WSGI":
                list(made(asked, lambda *_: None))
            else:
                asyncio.run(made(asked, receive, send))
            del asked
            assert freed() is None
    finally:
        gc.enable()
