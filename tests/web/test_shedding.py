"""Requests that are shed, as clients see it; and which requests are inside, as factors see it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from diana import AsyncGuard, Guard, Policy, Request, Verdict, asgi, wsgi
from diana.core.shed_settings import Activity, Factor, Level, Sample, ShedSettings
from diana.gateway.app import gateway
from diana.gateway.upstream import upstream_from_url
from diana.rules.loading import rules_from_bytes
from tests.gateway.upstreams import HELLO, get, listening, says, status_of, upstream
from tests.gateway.upstreams import ask as ask_gateway
from tests.servers.waiting import until
from tests.shedding.lines import Dial, at_level, line, policy
from tests.web.calls import aask, ask, ask_wsgi, environ, hello

ALL = (Level(1, 100),)
SPARED = b"except: [/healthz]"
OVERLOADED = (
    "The service is overloaded and rejects some requests. No quota was used. Please try again in"
)


def overloaded(
    rules: bytes = b"limits: [{url: /, rules: [{name: you, unit: hour, rpu: 5}]}]",
) -> Guard:
    guard = Guard(policy(line(Dial(50.0), ALL, like=SPARED), rules=rules))
    at_level(guard, 1)
    return guard


def hello_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def test_the_answer_says_that_it_is_load_and_not_quota() -> None:
    guard = overloaded()
    app = wsgi.RateLimitMiddleware(hello_wsgi, guard=guard)
    seen = set()
    for _ in range(100):
        answer = ask_wsgi(app, "/")
        assert answer.status == 503
        retry = int(answer.header("Retry-After") or 0)
        seen.add(retry)
        assert answer.header("Content-Type") == "application/problem+json"
        assert answer.header("Cache-Control") == "no-store"
        assert not [name for name, _ in answer.headers if "ratelimit" in name.lower()]
        assert json.loads(answer.body) == {
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Service Overloaded",
            "status": 503,
            "detail": f"{OVERLOADED} {retry} second{'' if retry == 1 else 's'}.",
            "retry_after": retry,
        }
    assert seen == {1, 2, 3, 4, 5}
    assert ask_wsgi(app, "/", method="HEAD").body == b""
    page = ask_wsgi(app, "/", headers=[("Accept", "text/html")])
    assert b"<h1>Service Overloaded</h1>" in page.body
    text = ask_wsgi(app, "/", headers=[("Accept", "text/plain")])
    assert text.body.startswith(OVERLOADED.encode())
    assert ask_wsgi(app, "/healthz").status == 200
    guard.close()


def test_status_headers_and_body_are_those_of_the_file() -> None:
    rules = b"response: {status: 429, headers: [], body: later}\nlimits: [{url: /, rules: [{unit: hour, rpu: 5}]}]"
    guard = overloaded(rules)
    answer = ask_wsgi(wsgi.RateLimitMiddleware(hello_wsgi, guard=guard), "/")
    assert (answer.status, answer.body) == (429, b"later")
    assert answer.header("Retry-After") is None
    guard.close()


def test_an_application_may_answer_itself() -> None:
    guard = overloaded()

    def denied(request: Request, verdict: Verdict) -> Any:
        assert verdict.shed is not None
        assert verdict.denied_by is None
        return hello_wsgi

    answer = ask_wsgi(wsgi.RateLimitMiddleware(hello_wsgi, guard=guard, denied=denied), "/")
    assert answer.body == b"hello"
    assert answer.header("Retry-After")
    guard.close()


def test_asgi() -> None:
    async def opened() -> AsyncGuard:
        guard = AsyncGuard(policy(line(Dial(50.0), ALL, like=SPARED)))
        await guard.check(Request())
        while not guard.factors[0].level:
            await asyncio.sleep(0.005)
        return guard

    guard = asyncio.run(opened())
    app = asgi.RateLimitMiddleware(hello, guard=guard)
    answer = ask(app, "/")
    assert (answer.status, json.loads(answer.body)["title"]) == (503, "Service Overloaded")
    assert ask(app, "/healthz").body == b"hello"
    asyncio.run(guard.close())


def test_the_gateway() -> None:
    guard = AsyncGuard(policy(line(Dial(50.0), ALL, like=SPARED)))
    with (
        upstream(says(HELLO)) as service,
        listening(gateway(guard, upstream_from_url(service.url))) as port,
    ):
        until(lambda: status_of(ask_gateway(port, get("/"))) == 503, "requests are shed")
        before = len(service.heads)
        assert [status_of(ask_gateway(port, get("/"))) for _ in range(5)] == [503] * 5
        assert status_of(ask_gateway(port, get("/healthz"))) == 200
        assert len(service.heads) == before + 1
    asyncio.run(guard.close())


class Watched:
    """A factor that keeps the activity it was opened with."""

    activity: Activity

    def open(self, activity: Activity) -> Sample:
        self.activity = activity
        return lambda: float(activity.inflight)

    def policy(self) -> Policy:
        kind = Factor(lambda: self.open, needs_activity=True)
        return policy(ShedSettings("watched", kind, {}, (Level(1_000, 10),), self.open))


def test_a_request_is_inside_from_being_let_in_until_its_answer_is_given_asgi() -> None:
    watched, seen = Watched(), list[tuple[int, bool]]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((watched.activity.inflight, watched.activity.loop.is_running()))
        if scope["path"] == "/fails":
            raise KeyError
        await hello(scope, receive, send)

    limited = asgi.RateLimitMiddleware(app, watched.policy())
    assert ask(limited, "/").status == 200
    with pytest.raises(KeyError):
        ask(limited, "/fails")
    assert seen == [(1, True), (1, True)]
    assert watched.activity.inflight == 0
    asyncio.run(limited.guard.close())


def test_a_denied_request_was_never_inside() -> None:
    watched = Watched()
    nobody = watched.policy()
    none = rules_from_bytes(b"url: /\nrules: [{unit: hour, rpu: 1, actor: account, missing: deny}]")
    limited = asgi.RateLimitMiddleware(hello, Policy(none.rules, settings=nobody.settings))
    assert ask(limited, "/").status == 503
    assert watched.activity.inflight == 0
    asyncio.run(limited.guard.close())


class FileWrapper:
    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)


def test_a_request_is_inside_until_its_body_is_taken_or_closed_wsgi() -> None:
    watched = Watched()

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        path = environ["PATH_INFO"]
        if path == "/fails":
            raise KeyError
        if path == "/file":
            wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"]([b"f"])
            return wrapped
        return [b"a"] if path == "/list" else (piece for piece in (b"a", b"b"))

    limited = wsgi.RateLimitMiddleware(app, watched.policy())

    def call(path: str) -> Any:
        asked = environ(path)
        asked["wsgi.file_wrapper"] = FileWrapper
        return limited(asked, lambda *_: None)

    assert call("/list") == [b"a"]
    assert watched.activity.inflight == 0, "it is made already"
    assert isinstance(call("/file"), FileWrapper), "a server sends it in a way of its own"
    assert watched.activity.inflight == 0
    with pytest.raises(KeyError):
        call("/fails")
    assert watched.activity.inflight == 0
    taken, closed = call("/stream"), call("/stream")
    assert watched.activity.inflight == 2
    assert list(taken) == [b"a", b"b"]
    assert watched.activity.inflight == 1
    taken.close()
    assert watched.activity.inflight == 1, "nobody leaves twice"
    assert next(iter(closed)) == b"a"
    closed.close()
    assert watched.activity.inflight == 0
    limited.close()


def test_too_many_requests_inside_shed_the_next() -> None:
    guard = Guard(policy_of("shed: [{factor: inflight, levels: [{above: 10, reject: 100}]}]"))
    assert guard.check(Request())
    until(lambda: guard.factors and guard.factors[0].smoothed == 0, "it is measured")
    inside = [guard.in_flight() for _ in range(50)]
    for one in inside:
        one.__enter__()
    until(lambda: not guard.check(Request()), "the next is shed")
    for one in inside:
        one.__exit__(None, None, None)
    until(lambda: guard.check(Request()), "the next may pass again")
    guard.close()


def policy_of(shed: str) -> Policy:
    return rules_from_bytes(
        f"{shed}\nlimits: [{{url: /, rules: [{{unit: hour, rpu: 1000000}}]}}]".encode()
    )


def test_a_loop_that_lags_sheds() -> None:
    served = "shed: [{factor: loop_lag, levels: [{above: 50, reject: 100}], except: [/healthz]}]"
    limited = asgi.RateLimitMiddleware(hello, policy_of(served))

    async def serve() -> list[int]:
        statuses = [(await aask(limited, "/")).status]
        end = time.monotonic() + 60
        while statuses[-1] != 503 and time.monotonic() < end:
            time.sleep(0.2)  # what an application should not do in a loop
            await asyncio.sleep(0)
            statuses.append((await aask(limited, "/")).status)
        assert (await aask(limited, "/healthz")).status == 200
        while statuses[-1] != 200 and time.monotonic() < end:
            await asyncio.sleep(0.05)
            statuses.append((await aask(limited, "/")).status)
        await limited.guard.close()
        return statuses

    statuses = asyncio.run(serve())
    assert (statuses[0], statuses[-1]) == (200, 200)
    assert 503 in statuses


def test_who_is_shed_last_may_be_known_to_the_application() -> None:
    guard = Guard(policy(line(Dial(50.0), (Level(1, 50),), like=b"last: {account: [acme]}")))
    at_level(guard, 1)
    asked = []

    def account(request: Any) -> str:
        asked.append(1)
        return "acme" if request.path == "/acme" else "other"

    app = wsgi.RateLimitMiddleware(hello_wsgi, guard=guard, account=account)
    statuses: dict[str, list[int]] = {"/": [], "/acme": []}
    for _ in range(200):
        for path in ("/", "/", "/", "/acme"):
            statuses[path].append(ask_wsgi(app, path).status)
    assert set(statuses["/acme"]) == {200}
    assert statuses["/"].count(503) == pytest.approx(400, abs=40)
    assert len(asked) == 800
    guard.close()
