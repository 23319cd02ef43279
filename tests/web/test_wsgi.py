"""Rules in front of a WSGI app."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any
from wsgiref.validate import validator

import pytest

from diana import ConfigError, Guard, Request
from diana.core.request import Contradiction
from diana.testing import FakeClock
from diana.wsgi import EnvironRequest, RateLimitMiddleware, status_line
from tests.web.calls import WsgiApp, ask_wsgi, environ, policy

TWO_A_MINUTE = "url: /\nrules: [{name: you, actor: ip, unit: minute, rpu: 2}]"
BY_ACCOUNT = "url: /\nrules: [{name: account, actor: account, unit: hour, rpu: 1}]"


def hello(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def limited(rules: str, app: WsgiApp = hello, **options: Any) -> RateLimitMiddleware:
    options.setdefault("clock", FakeClock())
    return RateLimitMiddleware(app, policy(rules), **options)


def statuses(app: WsgiApp, times: int, path: str = "/", **request: Any) -> list[int]:
    return [ask_wsgi(app, path, **request).status for _ in range(times)]


def test_requests_over_the_limit_never_reach_the_app() -> None:
    reached = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        reached.append(environ["PATH_INFO"])
        return hello(environ, start_response)

    some = limited(TWO_A_MINUTE, app)
    allowed = ask_wsgi(some, "/a")
    assert allowed.header("RateLimit") == '"you";r=1;t=30'
    assert allowed.header("RateLimit-Policy") == '"you";q=2;w=60'
    assert ask_wsgi(some, "/b").body == b"hello"
    denied = ask_wsgi(some, "/c")
    assert denied.status == 503
    assert denied.header("Retry-After") == "30"
    assert denied.header("Content-Type") == "application/problem+json"
    assert json.loads(denied.body)["violated-policies"] == ["you"]
    assert reached == ["/a", "/b"]


@pytest.mark.parametrize("observers", [[], [lambda request, verdict: None]], ids=["", "observed"])
@pytest.mark.parametrize(
    "more", ["", ", charge_on: [2xx]"], ids=["charged at once", "charged by status"]
)
@pytest.mark.parametrize("slots", ["", ", {name: slots, algo: C, most: 9}"], ids=["", "slots"])
def test_it_keeps_to_the_standard(observers: Any, more: str, slots: str) -> None:
    """The standard library's checker raises where an app or a server does not."""
    checked: Any = validator
    rules = f"url: /\nrules: [{{name: you, actor: ip, unit: minute, rpu: 2{more}}}{slots}]"
    some = checked(limited(rules, checked(hello), observers=observers))
    started: list[str] = []

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
        started.append(status)
        return lambda _: None

    for _ in range(3):
        made = {**environ(), "wsgi.errors": StringIO()}
        answered = some(made, start_response)
        list(answered)
        answered.close()
    assert started == ["200 OK", "200 OK", "503 Service Unavailable"]


def test_the_apps_iterable_and_what_it_raises_pass_untouched() -> None:
    chunks = iter([b"one", b"two"])

    def app(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/error":
            raise RuntimeError("the app's own")
        try:
            raise ValueError
        except ValueError as error:
            start_response("500 Oops", [], (ValueError, error, None))
        return chunks

    got: list[Any] = []
    some = limited(TWO_A_MINUTE, app)
    assert some(environ(), lambda *args: got.extend(args)) is chunks
    assert (got[0], got[2][0]) == ("500 Oops", ValueError)
    with pytest.raises(RuntimeError, match="the app's own"):
        some(environ("/error"), lambda *args: None)


def test_the_apps_own_header_lines_stay() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("RateLimit", '"own";r=1'), ("x-ratelimit-limit", "7")])
        return []

    rules = "response: {headers: [ietf, legacy]}\nlimits: [{url: /, rules: [{name: a, unit: hour, rpu: 9}]}]"
    answer = ask_wsgi(limited(rules, app))
    assert answer.lines("RateLimit") == ['"own";r=1', '"a";r=8;t=400']
    assert answer.lines("X-RateLimit-Limit") == ["7"]
    assert ask_wsgi(limited(rules)).header("X-RateLimit-Remaining") == "8"


def test_without_rules_for_it_nothing_is_added() -> None:
    answer = ask_wsgi(limited("url: /elsewhere\nrules: [{unit: hour, rpu: 1}]"))
    assert [name for name, _ in answer.headers] == ["Content-Type"]


def test_head_has_no_body() -> None:
    some = limited("url: /\nmethods: [GET]\nrules: [{unit: minute, rpu: 1}]")
    assert ask_wsgi(some, method="GET").status == 200
    denied = ask_wsgi(some, method="HEAD")
    assert (denied.status, denied.body) == (503, b"")
    assert int(denied.header("Content-Length") or 0) > 100


def test_a_delay_sleeps() -> None:
    clock = FakeClock()
    some = limited("url: /\nrules: [{unit: second, rpu: 1, algo: LB, burst: 2}]", clock=clock)
    assert statuses(some, 3) == [200] * 3
    assert clock.now_us == 2_000_000


@pytest.mark.parametrize("url", ["/login", "/api/login"])
def test_a_rule_covers_an_app_below_a_path_with_and_without_it(url: str) -> None:
    some = limited(f"url: {url}\nrules: [{{unit: hour, rpu: 2}}]")
    assert ask_wsgi(some, "/login", script="/api").status == 200
    assert ask_wsgi(some, "/%6Cogin", script="/api").status == 200
    assert ask_wsgi(some, "/login", script="/api").status == 503


@pytest.mark.parametrize(
    ("sent", "segments"),
    [
        (environ("/a//b/../c/"), ("a", "c")),
        (environ("/login", script="/api"), ("api", "login")),
        (environ("/100%2541%3F"), ("100%41?",)),
        (environ("/caf%C3%A9"), ("café",)),
        (environ("/%FF"), ("\udcff",)),
        (environ(""), ()),
        ({"REQUEST_METHOD": "GET"}, ()),
    ],
)
def test_the_path_is_the_one_the_client_sent(sent: Any, segments: tuple[str, ...]) -> None:
    assert EnvironRequest(sent).segments == segments


def test_headers_of_an_environ() -> None:
    made = environ(headers=[("X-Tag", "one"), ("x-tag", "two"), ("Cookie", "device=d1")])
    request = EnvironRequest({**made, "CONTENT_TYPE": "text/plain", "CONTENT_LENGTH": ""})
    with pytest.raises(Contradiction):
        request.header("x-tag")
    assert request.header_lines("x-none") == []
    assert request.header("content-type") == "text/plain"
    assert request.cookie("device") == "d1"
    assert dict(request.headers) == {
        "X-TAG": "one,two",
        "COOKIE": "device=d1",
        "CONTENT-TYPE": "text/plain",
    }


@pytest.mark.parametrize("joined", [",", ", "])
def test_two_lines_that_a_server_joined_contradict_each_other(joined: str) -> None:
    """Such as X-Account-Id and X_Account_Id: a client must not make itself a new name for every request."""
    some = limited(
        "url: /\nrules: [{actor: header X-Account-Id, unit: hour, rpu: 1}]", observers=[]
    )
    made = [environ(headers=[("X-Account-Id", f"alice{joined}{n}")]) for n in range(3)]
    keys = {some.guard.check(EnvironRequest(one)).decisions[0].key for one in made}
    assert keys == {"?203.0.113.9"}
    assert EnvironRequest(environ(headers=[("X-A", "7,7")])).header("x-a") == "7"
    agent = "Mozilla/5.0 (KHTML, like Gecko)"
    assert EnvironRequest(environ(headers=[("User-Agent", agent)])).header("user-agent") == agent


def test_who_comes_through_a_unix_socket_is_limited_together() -> None:
    assert statuses(limited(TWO_A_MINUTE), 3, peer=None) == [200, 200, 503]


def test_a_file_of_rules_and_a_guard_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("diana.yaml").write_text(TWO_A_MINUTE)
    from_file = RateLimitMiddleware(hello)
    assert statuses(from_file, 3) == [200, 200, 503]
    from_file.close()
    guard = Guard(policy(TWO_A_MINUTE), clock=FakeClock())
    own = RateLimitMiddleware(hello, guard=guard)
    assert statuses(own, 3) == [200, 200, 503]
    own.close()
    with pytest.raises(ConfigError, match="a guard has its own rules"):
        RateLimitMiddleware(hello, guard=guard, store="memory://")


def test_a_function_says_who_is_asking() -> None:
    some = limited(BY_ACCOUNT, account=lambda request: request.environ.get("HTTP_X_KEY"))
    assert statuses(some, 2, headers=[("X-Key", "k1")]) == [200, 503]
    assert ask_wsgi(some, headers=[("X-Key", "k2")]).status == 200


def test_a_function_that_raises_or_has_to_be_awaited() -> None:
    def broken(request: Request) -> str:
        raise LookupError

    async def later(request: Request) -> str:
        return "alice"

    some = limited(BY_ACCOUNT, account=broken)
    assert statuses(some, 2) == [200, 503]
    assert some.guard.identity_errors == 2
    with pytest.raises(ConfigError, match="account is a coroutine function; here, give a plain"):
        limited(BY_ACCOUNT, account=later)
    hidden = limited(BY_ACCOUNT, account=lambda request: later(request))
    assert statuses(hidden, 2) == [200, 503]
    assert hidden.guard.identity_errors == 2


def test_status_lines() -> None:
    assert status_line(429) == "429 Too Many Requests"
    assert status_line(599) == "599 Limited"
