"""Rules as a Django middleware, through Django's own handlers: WSGI, ASGI, and its clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diana import ConfigError, Policy
from diana.core.shed_settings import Activity, Factor, Level, Sample, ShedSettings
from diana.testing import FakeClock
from tests.servers.waiting import until
from tests.shedding.lines import Dial
from tests.shedding.lines import policy as shedding_policy
from tests.stores.shared.zones import zone_name
from tests.web import django_site
from tests.web.calls import Answer, aask, ask, ask_wsgi, environ, policy, scope

from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.test import override_settings  # isort: skip
from diana.django import RateLimitMiddleware, user  # isort: skip

TWO_A_MINUTE = "url: /\nrules: [{name: you, actor: ip, unit: minute, rpu: 2}]"
BY_ACCOUNT = "url: /\nrules: [{name: account, actor: account, unit: hour, rpu: 1}]"
DIANA = "diana.django.RateLimitMiddleware"
LOGGING_IN = "tests.web.django_site.logging_in"

Site = Callable[..., Callable[..., Answer]]


@pytest.fixture(params=["WSGI", "ASGI"])
def site(request: pytest.FixtureRequest) -> Site:
    """Django behind some rules and settings."""

    def behind(rules: str | Policy, middleware: tuple[str, ...] = (DIANA,), **more: Any) -> Any:
        more = {
            "DIANA_CLOCK": FakeClock(),
            **more,
            "DIANA_RULES": policy(rules) if isinstance(rules, str) else rules,
        }
        with override_settings(MIDDLEWARE=middleware, **more):
            handler = WSGIHandler() if request.param == "WSGI" else ASGIHandler()
        if request.param == "WSGI":
            return lambda *args, **kwargs: ask_wsgi(handler, *args, **kwargs)
        return lambda *args, **kwargs: ask(handler, *args, **kwargs)

    return behind


def statuses(
    asked: Callable[..., Answer], times: int, path: str = "/", **request: Any
) -> list[int]:
    return [asked(path, **request).status for _ in range(times)]


def test_workers_count_together_in_a_zone(site: Site) -> None:
    with zone_name() as zone:
        local_store = f"shared://{zone}?size=4m"
        workers = [site(TWO_A_MINUTE, DIANA_LOCAL_STORE=local_store) for _ in range(2)]
        assert [worker("/").status for worker in workers] == [200, 200]
        assert [worker("/").status for worker in workers] == [503, 503]


@pytest.mark.parametrize("path", ["/", "/async"])
def test_requests_over_the_limit(site: Site, path: str) -> None:
    asked = site(TWO_A_MINUTE)
    first = asked(path)
    assert (first.status, first.body) == (200, b"hello")
    assert first.header("RateLimit") == '"you";r=1;t=30'
    assert first.header("RateLimit-Policy") == '"you";q=2;w=60'
    assert asked(path).status == 200
    denied = asked(path)
    assert (denied.status, denied.header("Retry-After")) == (503, "30")
    assert denied.header("Content-Type") == "application/problem+json"
    assert json.loads(denied.body)["violated-policies"] == ["you"]
    head = asked(path, method="HEAD")
    assert (head.status, head.body) == (503, b"")
    assert asked(path, peer="198.51.100.1").status == 200


def test_headers_of_its_own_and_streams(site: Site) -> None:
    rules = "response: {headers: [ietf, legacy]}\nlimits: [{url: /, rules: [{name: a, unit: hour, rpu: 9}]}]"
    asked = site(rules)
    own = asked("/own")
    assert own.lines("RateLimit") == ['"own";r=1, "a";r=8;t=400']
    assert own.lines("X-RateLimit-Limit") == ["7"]
    assert own.lines("X-RateLimit-Reset") == []
    streamed = asked("/stream")
    assert streamed.body == b"0123456789"
    assert streamed.header("X-RateLimit-Remaining") == "7"


@pytest.mark.parametrize("path", ["/login", "//login", "/login/", "/%6Cogin", "/x/../login"])
def test_every_spelling_of_a_path(site: Site, path: str) -> None:
    asked = site("url: /login\nrules: [{unit: hour, rpu: 1}]")
    assert [asked("/login").status, asked(path).status] == [200, 503]
    assert asked("/100%25?/%FF/%C3%A9").status == 200


def test_an_app_below_a_path(site: Site, request: pytest.FixtureRequest) -> None:
    asked = site("url: /api/login\nrules: [{unit: hour, rpu: 1}]")
    if "WSGI" in request.node.name:
        assert statuses(asked, 2, "/login", script="/api") == [200, 503]
    else:
        assert statuses(asked, 2, "/api/login", root_path="/api") == [200, 503]


@pytest.mark.parametrize("url", ["/login", "/api/login"])
def test_a_rule_covers_an_app_below_a_path_with_and_without_it(
    site: Site, url: str, request: pytest.FixtureRequest
) -> None:
    asked = site(f"url: {url}\nrules: [{{unit: hour, rpu: 1}}]")
    if "WSGI" in request.node.name:
        assert statuses(asked, 2, "/login", script="/api") == [200, 503]
    else:
        assert statuses(asked, 2, "/api/login", root_path="/api") == [200, 503]


@pytest.mark.parametrize("url", ["/login", "/api/login"])
def test_a_forced_script_name(site: Site, url: str) -> None:
    asked = site(f"url: {url}\nrules: [{{unit: hour, rpu: 1}}]")
    with override_settings(FORCE_SCRIPT_NAME="/api"):
        assert statuses(asked, 2, "/login") == [200, 503]


def test_who_is_logged_in(site: Site) -> None:
    asked = site(BY_ACCOUNT, (LOGGING_IN, DIANA), DIANA_ACCOUNT="diana.django.user")
    for number in ("1", "2"):
        assert statuses(asked, 2, headers=[("X-User", number)]) == [200, 503]
    assert statuses(asked, 2) == [200, 503]  # nobody: by address


def test_in_front_of_the_authentication_there_is_no_user(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    asked = site(BY_ACCOUNT, (DIANA, LOGGING_IN), DIANA_ACCOUNT=user)
    assert statuses(asked, 3, headers=[("X-User", "1")])[0] == 200
    assert statuses(asked, 1, headers=[("X-User", "2")]) == [503]
    assert "put diana behind AuthenticationMiddleware" in caplog.text


def test_functions_plain_and_async(site: Site) -> None:
    async def device(request: Any) -> str | None:
        await asyncio.sleep(0)
        return request.COOKIES.get("device")  # type: ignore[no-any-return]

    class Account:
        async def __call__(self, request: Any) -> str:
            return "alice"

    rules = "limits: [{url: /, rules: [{actor: [account, device], unit: hour, rpu: 1}]}]"
    asked = site(rules, DIANA_ACCOUNT=Account(), DIANA_DEVICE=device)
    for number in ("1", "2"):
        assert statuses(asked, 2, headers=[("Cookie", f"device={number}")]) == [200, 503]


def test_a_function_that_raises(site: Site) -> None:
    asked = site(BY_ACCOUNT, DIANA_ACCOUNT=lambda request: request.session["user"])
    assert statuses(asked, 2) == [200, 503]
    assert asked(peer="198.51.100.1").status == 200


def test_a_queue(site: Site) -> None:
    clock = FakeClock()
    asked = site("url: /\nrules: [{unit: second, rpu: 1, algo: LB, burst: 2}]", DIANA_CLOCK=clock)
    assert statuses(asked, 3) == [200] * 3
    assert clock.now_us == 2_000_000


def test_who_leaves_the_queue_gives_the_place_back() -> None:
    """Django watches for that itself, and cancels."""
    rules = policy("url: /\nrules: [{unit: day, rpu: 1, algo: LB, burst: 1}]")
    held: list[float] = []

    def watch(request: Any, verdict: Any) -> None:
        held.append(verdict.delay)

    with override_settings(MIDDLEWARE=[DIANA], DIANA_RULES=rules, DIANA_OBSERVERS=[watch]):
        handler = ASGIHandler()

    async def leave() -> None:
        came: asyncio.Queue[Any] = asyncio.Queue()
        came.put_nowait({"type": "http.request", "body": b""})

        async def send(message: Any) -> None: ...

        call = asyncio.ensure_future(handler(scope("/async"), came.get, send))
        before = len(held)
        async with asyncio.timeout(10):
            while len(held) == before:
                await asyncio.sleep(0)
        came.put_nowait({"type": "http.disconnect"})
        await call

    async def main() -> None:
        assert (await aask(handler, "/async")).status == 200
        for _ in range(3):
            await leave()

    asyncio.run(main())
    assert held[0] == 0
    assert all(delay > 86_000 for delay in held[1:])
    assert len(held) == 4


def test_settings(tmp_path: Path) -> None:
    def answered(request: Any) -> Any:
        return django_site.hello(request)

    with override_settings(BASE_DIR=tmp_path):
        with pytest.raises(ConfigError, match=r"diana\.yaml: cannot be read"):
            RateLimitMiddleware(answered)
        (tmp_path / "diana.yaml").write_text(TWO_A_MINUTE)
        assert RateLimitMiddleware(answered).guard.policy.rules[0].name == "you"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"DIANA_STORE": "nowhere://"}, "nowhere"),
        ({"DIANA_ACCOUNT": 3}, "account is 3; give a function of the request"),
    ]
    for settings, said in wrong:
        rules = {"DIANA_RULES": str(tmp_path / "diana.yaml")}
        with override_settings(**rules, **settings), pytest.raises(ConfigError, match=said):
            RateLimitMiddleware(answered)


def test_requests_are_inside_until_they_are_answered_and_shed_when_it_is_time(site: Site) -> None:
    dial = Dial(1.0)

    def open(activity: Activity) -> Sample:
        django_site.ACTIVITY.append(activity)
        return dial

    kind = Factor(lambda: open, needs_activity=True)
    rules = shedding_policy(ShedSettings("dial", kind, {}, (Level(10, 100),), open))
    asked = site(rules, (DIANA, "tests.web.django_site.noting"), DIANA_CLOCK=None)
    django_site.INSIDE.clear()
    assert asked("/").status == 200
    assert django_site.INSIDE == [1]
    assert django_site.ACTIVITY[-1].inflight == 0
    dial.value = 1_000.0
    until(lambda: asked("/").status == 503, "requests are shed")
    assert json.loads(asked("/").body)["title"] == "Service Overloaded"
    assert django_site.ACTIVITY[-1].inflight == 0
    dial.value = None
    until(lambda: asked("/").status == 200, "requests are no longer shed")


@pytest.mark.parametrize("path", ["/", "/async", "/stream"])
def test_a_place_is_given_back_when_the_answer_is_sent(site: Site, path: str) -> None:
    asked = site("url: /\nrules: [{name: one, algo: C, most: 1}]", DIANA_CLOCK=None)
    for _ in range(5):
        answer = asked(path)
        assert answer.status == 200
        assert answer.header("RateLimit") == '"one";r=0'


def test_a_streamed_answer_holds_its_place_until_it_is_closed() -> None:
    rules = policy("url: /\nrules: [{name: one, algo: C, most: 1}]")
    with override_settings(MIDDLEWARE=(DIANA,), DIANA_RULES=rules, DIANA_CLOCK=None):
        handler = WSGIHandler()
    body: Any = handler(environ("/stream"), lambda *_: None)
    assert ask_wsgi(handler).status == 503
    body.close()
    assert ask_wsgi(handler).status == 200
