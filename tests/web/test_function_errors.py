"""`cost=`, `limit=` and `allow=` in code that fail: the request is limited without them, counted and logged, and nothing else happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from diana import ConfigError, Guard, Policy, Request
from diana.asgi import RateLimitMiddleware as Asgi
from diana.engine.function_errors import FunctionErrors
from diana.guard import AsyncGuard
from diana.telemetry.prometheus import PrometheusObserver
from diana.testing import FakeClock
from tests.web.calls import ask, hello, policy
from tests.web.test_route_beside_middleware import ALL, SITE, left
from tests.web.test_routes import (
    Made,
    on_async_django,
    on_fastapi,
    on_litestar,
    on_starlette,
)

RULES = policy("limits: [{url: /, rules: [{name: site, actor: ip, unit: hour, rpu: 10, algo: W}]}]")


def fails(_: Any) -> Any:
    raise LookupError("no contract")


async def fails_later(_: Any) -> Any:
    await asyncio.sleep(0)
    raise LookupError("no contract")


WRONG: dict[str, Any] = {"cost": "3", "limit": "often"}
FUNCTIONS = ("cost", "limit", "allow")
in_every_framework = pytest.mark.parametrize("made", ALL)


def with_function(name: str, function: Any) -> Policy:
    functions: dict[str, Any] = {name: function}
    return RULES.with_functions("site", **functions)


KINDS = [
    *((name, kind) for name in FUNCTIONS for kind in ("raises", "returns an awaitable")),
    *((name, "returns what is wrong") for name in ("cost", "limit")),  # `allow` may return anything
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_rule_is_applied_without_the_function(
    name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def later() -> bool:
        return True

    function = {
        "raises": fails,
        "returns what is wrong": lambda _: WRONG.get(name),
        "returns an awaitable": lambda _: later(),
    }[kind]
    registry = CollectorRegistry()
    guard = Guard(
        with_function(name, function), clock=FakeClock(), observers=[PrometheusObserver(registry)]
    )
    verdicts = [guard.check(Request(peer="203.0.113.9")) for _ in range(11)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 10 + [False]
    assert verdicts[0].decisions[0].remaining == 9  # charged 1, under the rule's own limit
    assert list(verdicts[0].function_errors) == [("site", name)]
    assert f"{name}= of site failed" in verdicts[0].explain()
    assert guard.function_errors == 11
    labels = {"rule": "site", "function": name}
    assert registry.get_sample_value("diana_function_errors_total", labels) == 11
    (said,) = [record.getMessage() for record in caplog.records if record.name == "diana"]
    assert said.startswith(f"{name}= of 'site' failed, so the ")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_behind_a_middleware(name: str) -> None:
    app = Asgi(hello, with_function(name, fails), clock=FakeClock())
    assert [ask(app).status for _ in range(11)] == [200] * 10 + [503]


def test_what_is_cancelled_is_cancelled() -> None:
    def cancelled(_: Any) -> int:
        raise asyncio.CancelledError

    guard = AsyncGuard(with_function("cost", cancelled), clock=FakeClock())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(guard.check(Request()))


def test_a_definition_that_is_wrong_fails_at_once() -> None:
    async def later(_: Any) -> int:
        return 1

    for name in FUNCTIONS:
        with pytest.raises(ConfigError, match=f"{name}= must be a plain function"):
            with_function(name, later)
        with pytest.raises(ConfigError, match=rf"{name}= must be a function of .* \(got 'three'\)"):
            with_function(name, "three")


def test_a_line_a_minute_is_logged_for_each_function(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    errors = FunctionErrors(lambda: clock.now_us / 1_000_000)
    for _ in range(3):
        for name in ("one", "two"):
            for function in ("cost", "limit"):
                errors.note_error(name, function, ValueError("\x1b]0;owned\x07"))
    assert len(caplog.records) == 4
    assert errors.count == 12
    assert "\x1b" not in caplog.text
    clock.advance(60)
    errors.note_error("one", "cost", ValueError())
    assert len(caplog.records) == 5


class Unshown(Exception):
    def __repr__(self) -> str:
        raise RuntimeError


def test_an_error_that_cannot_be_shown_is_named(caplog: pytest.LogCaptureFixture) -> None:
    FunctionErrors().note_error("one", "cost", Unshown())
    assert caplog.messages == ["cost= of 'one' failed, so the request is charged 1: Unshown"]


@in_every_framework
def test_a_cost_on_a_route_that_fails_is_one(made: Made) -> None:
    asked = made("2/minute", SITE, {"clock": FakeClock()}, name="route", cost=fails)
    answers = [asked() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert left(answers[0], "route") == 1


@in_every_framework
def test_allow_on_a_route_that_fails_exempts_no_request(made: Made) -> None:
    asked = made("1/minute", SITE, {"clock": FakeClock()}, name="route", allow=fails)
    assert [asked().status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("made", [on_fastapi, on_starlette, on_litestar, on_async_django])
@pytest.mark.parametrize("name", ["cost", "allow"])
def test_async_functions_on_a_route(made: Made, name: str) -> None:
    options: dict[str, Any] = {"name": "route", name: fails_later}
    asked = made("1/minute", SITE, {"clock": FakeClock()}, **options)
    assert [asked().status for _ in range(2)] == [200, 429]


@in_every_framework
def test_a_limit_on_a_route_that_fails_is_the_base_limit(made: Made) -> None:
    asked = made(fails, SITE, {"clock": FakeClock()}, name="route", base_limit="2/minute")
    assert [asked().status for _ in range(3)] == [200, 200, 429]
    asked = made(fails, SITE, {"clock": FakeClock()}, name="route")
    assert [asked().status for _ in range(2)] == [200, 429]
