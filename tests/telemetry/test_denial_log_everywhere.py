"""One option writes a line per denied request, in every middleware: also for what a limit on a route denies."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from diana import ConfigError, Guard, Policy
from diana.asgi import RateLimitMiddleware as Asgi
from diana.telemetry.denial_log import DenialLog
from diana.testing import FakeClock
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.web.calls import ask, ask_wsgi, hello, policy
from tests.web.test_routes import (
    FRAMEWORKS,
    NO_RULES,
    Made,
    on_async_django,
    on_django,
)

RULES = policy("limits: [{url: /, rules: [{name: you, actor: ip, unit: minute, rpu: 1}]}]")
LINE = "GET '/' denied by rule 'you' (1/minute by ip), retry after 60 s, client digest "
BY_NAME: dict[str, Any] = {"observers": ["denial_log"]}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "diana.denials"]


def wsgi_hello(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_by_name(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "diana.denials")
    if kind == "asgi":
        app: Any = Asgi(hello, RULES, clock=FakeClock(), **BY_NAME)
        assert [ask(app).status for _ in range(2)] == [200, 503]
    else:
        some = Wsgi(wsgi_hello, RULES, clock=FakeClock(), **BY_NAME)
        assert [ask_wsgi(some).status for _ in range(2)] == [200, 503]
    (line,) = lines(caplog)
    assert line.startswith(LINE)


@pytest.mark.parametrize("made", [on_django, on_async_django])
@pytest.mark.parametrize("observer", ["denial_log", DenialLog("plain")], ids=["name", "object"])
def test_as_a_setting_of_django(
    made: Made, observer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diana.denials")
    asked = made("9/minute", RULES, {"clock": FakeClock(), "observers": [observer]})
    assert [asked().status for _ in range(2)] == [200, 503]
    (line,) = lines(caplog)
    assert line.startswith(LINE.removesuffix("digest ") if observer != "denial_log" else LINE)


@pytest.mark.parametrize("made", FRAMEWORKS)
def test_a_denial_by_a_route_is_one_line(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "diana.denials")
    asked = made("1/minute", NO_RULES, {"clock": FakeClock(), **BY_NAME}, name="you")
    assert [asked().status for _ in range(2)] == [200, 429]
    (line,) = lines(caplog)
    assert line.startswith(LINE)


@pytest.mark.parametrize("wrong", ["prometheus", DenialLog()])
def test_a_list_is_wanted(wrong: Any) -> None:
    for make in (
        lambda: Guard(Policy([]), observers=wrong),
        lambda: Wsgi(wsgi_hello, RULES, observers=wrong),
    ):
        with pytest.raises(ConfigError, match=r"observers= must be a list \(got .*; write obs"):
            make()


def test_a_list_is_wanted_in_django_s_settings() -> None:
    with pytest.raises(ConfigError, match="DIANA_OBSERVERS must be a list"):
        on_django("9/minute", RULES, {"observers": "denial_log"})
