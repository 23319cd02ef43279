"""Limits on FastAPI's routes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response, WebSocket
from fastapi.responses import JSONResponse
from starlette.requests import HTTPConnection

from diana import ConfigError, Verdict
from diana.fastapi import (
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    exempt,
    rate_limit_exceeded_handler,
)
from diana.fastapi import rate_limit as limited
from diana.stores.memory import MemoryStore
from diana.testing import FakeClock
from tests.web.calls import aask, ask, policy
from tests.web.test_asgi import Socket


def rate_limit(limit: str = "2/minute", **options: Any) -> RateLimit:
    options.setdefault("clock", FakeClock())
    return RateLimit(limit, **options)


def statuses(app: FastAPI, path: str, times: int, **request: Any) -> list[int]:
    return [ask(app, path, **request).status for _ in range(times)]


def test_a_limit_on_a_route() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(rate_limit())])
    async def home() -> str:
        return "hello"

    @app.get("/free")
    async def free() -> str:
        return "hello"

    first = ask(app)
    assert (first.status, first.body) == (200, b'"hello"')
    assert first.header("ratelimit-policy") == '"2/minute by ip";q=2;w=60'
    assert first.header("ratelimit") == '"2/minute by ip";r=1;t=30'
    assert statuses(app, "/", 2) == [200, 429]
    assert ask(app, "/", peer="198.51.100.1").status == 200
    assert ask(app, "/free").headers == [
        ("content-length", "7"),
        ("content-type", "application/json"),
    ]


def test_a_denial_is_an_error_as_fastapi_has_them() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(rate_limit("1/minute"))])
    async def home() -> str:
        return "hello"

    ask(app)
    denied = ask(app)
    assert denied.status == 429
    assert denied.header("retry-after") == "60"
    assert denied.header("cache-control") == "no-store"
    assert denied.header("content-type") == "application/problem+json"
    assert denied.header("content-length") == str(len(denied.body))
    assert json.loads(denied.body) == {
        "detail": "Too many requests. Please try again in 60 seconds."
    }
    app.add_exception_handler(RateLimitExceeded, rate_limit_exceeded_handler)
    app.middleware_stack = None
    denied = ask(app, headers=[("Accept", "text/html")])
    assert denied.header("content-type") == "text/html; charset=utf-8"
    assert b"<h1>Too Many Requests</h1>" in denied.body
    assert denied.header("content-length") == str(len(denied.body))
    assert json.loads(ask(app).body)["violated-policies"] == ["1/minute by ip"]


def test_what_can_never_pass() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(rate_limit(actor="account", missing="deny"))])
    async def home() -> str:
        return "hello"

    denied = ask(app)
    assert (denied.status, denied.header("retry-after")) == (429, None)


def test_a_router_and_its_routes() -> None:
    app = FastAPI()
    router = APIRouter(prefix="/api", dependencies=[Depends(rate_limit("3/minute"))])

    @router.get("/one", dependencies=[Depends(rate_limit("2/minute"))])
    async def one() -> str:
        return "one"

    @router.get("/two")
    async def two() -> str:
        return "two"

    @router.get("/healthz")
    @exempt
    async def healthz() -> str:
        return "ok"

    app.include_router(router)
    told = ask(app, "/api/one").lines("ratelimit")
    assert told == ['"3/minute by ip";r=2;t=20', '"2/minute by ip";r=1;t=30']
    assert statuses(app, "/api/one", 1) == [200]
    assert statuses(app, "/api/one", 5) == [429] * 5  # by its own two, and charged to none
    assert statuses(app, "/api/two", 2) == [200, 429]  # so the router's third is still there
    assert statuses(app, "/api/healthz", 5) == [200] * 5


def test_several_on_one_route_are_all_or_nothing() -> None:
    clock = FakeClock()
    wide, narrow = rate_limit("10/hour", clock=clock), rate_limit("1/minute", clock=clock)
    app = FastAPI()

    @app.get("/both")
    async def both(a: Any = Depends(wide), b: Any = Depends(narrow)) -> str:  # noqa: B008
        return "both"

    @app.get("/wide", dependencies=[Depends(wide)])
    async def just_wide() -> str:
        return "wide"

    assert statuses(app, "/both", 6) == [200] + [429] * 5
    assert ask(app, "/wide").header("ratelimit") == '"10/hour by ip";r=8;t=360'


def test_one_limit_twice_on_a_route_counts_once() -> None:
    same = rate_limit("2/minute")
    app = FastAPI(dependencies=[Depends(same)])

    @app.get("/", dependencies=[Depends(same)])
    async def home() -> str:
        return "hello"

    assert statuses(app, "/", 3) == [200, 200, 429]


def test_several_limits_in_one_spelling() -> None:
    search = rate_limit("2/second; 3/hour", name="search", clock=FakeClock())
    app = FastAPI()

    @app.get("/", dependencies=[Depends(search)])
    async def home() -> str:
        return "hello"

    assert ask(app).header("ratelimit") == '"search second";r=1;t=1, "search hour";r=2;t=1200'
    assert statuses(app, "/", 2) == [200, 429]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_function_says_who_is_asking(kind: str) -> None:
    def plain(request: Request) -> str | None:
        return request.headers.get("x-api-key")

    async def awaited(request: Request) -> str | None:
        await asyncio.sleep(0)
        return request.headers.get("x-api-key")

    app = FastAPI()
    actor = plain if kind == "plain" else awaited

    @app.get("/", dependencies=[Depends(rate_limit("1/minute", actor=actor))])
    async def home() -> str:
        return "hello"

    for key in ("k1", "k2"):
        assert statuses(app, "/", 2, headers=[("X-Api-Key", key)]) == [200, 429]
    assert statuses(app, "/", 2) == [200, 429]


def test_a_user_that_an_earlier_dependency_found() -> None:
    app = FastAPI()

    async def login(request: Request) -> None:
        request.state.user = request.headers["x-user"]

    by_user = rate_limit("1/minute", actor=lambda request: request.state.user)

    @app.get("/", dependencies=[Depends(login), Depends(by_user)])
    async def home() -> str:
        return "hello"

    assert statuses(app, "/", 2, headers=[("X-User", "ann")]) == [200, 429]
    assert statuses(app, "/", 2, headers=[("X-User", "bob")]) == [200, 429]


def test_actors_as_in_a_rules_file() -> None:
    app = FastAPI()
    limit = rate_limit("1/minute", actor=["header X-Tenant", "ip"], trusted_proxies=["10.0.0.0/8"])

    @app.get("/", dependencies=[Depends(limit)])
    async def home() -> str:
        return "hello"

    headers = [("X-Tenant", "a"), ("X-Forwarded-For", "198.51.100.1")]
    assert statuses(app, "/", 2, headers=headers, peer="10.0.0.1") == [200, 429]
    others = [("X-Tenant", "a"), ("X-Forwarded-For", "198.51.100.2")]
    assert ask(app, headers=others, peer="10.0.0.1").status == 200


def test_status_body_and_older_headers() -> None:
    app = FastAPI()
    app.add_exception_handler(RateLimitExceeded, rate_limit_exceeded_handler)
    first = rate_limit("1/minute", status=503, body="later", headers=["legacy"])
    second = rate_limit("5/minute", headers=["ietf", "legacy"])

    @app.get("/", dependencies=[Depends(first), Depends(second)])
    async def home() -> str:
        return "hello"

    told = ask(app)
    assert told.lines("x-ratelimit-limit") == ["1"]
    assert told.lines("ratelimit") == ['"5/minute by ip";r=4;t=12']
    denied = ask(app)
    assert (denied.status, denied.body) == (503, b"later")


def test_algorithms_costs_and_stores() -> None:
    store, clock = MemoryStore(), FakeClock()
    app = FastAPI()
    options: Any = {"store": store, "clock": clock, "algo": "SW", "slices": 5}

    @app.get("/one", dependencies=[Depends(RateLimit("4/minute", name="a", **options))])
    async def one() -> str:
        return "one"

    @app.get("/two", dependencies=[Depends(RateLimit("4/minute", name="a", cost=2, **options))])
    async def two() -> str:
        return "two"

    assert statuses(app, "/two", 1) + statuses(app, "/one", 3) == [200, 200, 200, 429]
    with pytest.raises(ConfigError, match="others count in this store too; give the limit a name="):
        RateLimit("4/minute", store=store)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"limit": "ten/minute"}, "'ten/minute' is no limit"),
        ({"actor": "adress"}, "'adress' is no actor"),
        ({"status": 99}, "99 is no status"),
        ({"slices": 3}, "slices is foreign to token bucket"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "is no network"),
        ({"headers": ["ietf", "x"]}, "x"),
    ],
)
def test_mistakes_are_told_at_once(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RateLimit(**{"limit": "10/minute", **wrong})


def test_a_decorator_on_any_kind_of_route() -> None:
    app = FastAPI()

    @app.get("/plain/{name}")
    @limited(rate_limit())
    def plain(name: str, q: int = 0) -> dict[str, Any]:
        """What it says."""
        return {"name": name, "q": q}

    @app.get("/async")
    @limited("2/minute", clock=FakeClock())
    async def awaited(request: Request) -> Response:
        return JSONResponse({"path": request.url.path}, headers={"X-Own": "1"})

    @app.get("/stacked")
    @limited(rate_limit("1/minute"))
    @limited(rate_limit("3/minute"))
    async def stacked() -> str:
        return "stacked"

    first = ask(app, "/plain/ann?q=3")
    assert json.loads(first.body) == {"name": "ann", "q": 3}
    assert first.lines("ratelimit") == ['"2/minute by ip";r=1;t=30']
    assert statuses(app, "/plain/ann", 2) == [200, 429]
    own = ask(app, "/async", headers=[("Host", "x")])
    assert (own.header("x-own"), own.header("ratelimit")) == ("1", '"2/minute by ip";r=1;t=30')
    assert statuses(app, "/async", 2) == [200, 429]
    assert len(ask(app, "/stacked").lines("ratelimit")) == 2
    assert ask(app, "/stacked").status == 429
    shown = app.openapi()["paths"]["/plain/{name}"]["get"]
    assert [parameter["name"] for parameter in shown["parameters"]] == ["name", "q"]
    assert shown["description"] == "What it says."


def test_a_route_that_yields_is_told_to_use_the_dependency() -> None:
    def numbers() -> Any:
        yield 1

    with pytest.raises(ConfigError, match="a route that yields takes its limit as a dependency"):
        limited("1/minute")(numbers)


def test_beside_the_middleware() -> None:
    app = FastAPI()
    rules = policy("url: /\nrules: [{name: site, unit: minute, rpu: 3}]")
    app.add_middleware(RateLimitMiddleware, rules=rules, clock=FakeClock())

    @app.get("/", dependencies=[Depends(rate_limit("2/minute"))])
    async def home() -> str:
        return "hello"

    assert ask(app).lines("ratelimit") == ['"2/minute by ip";r=1;t=30', '"site";r=2;t=20']
    assert statuses(app, "/", 3) == [
        200,
        429,
        429,
    ]  # what the route denies, the site does not charge


def test_a_queue_holds_the_route() -> None:
    clock = FakeClock()
    app = FastAPI()

    @app.get("/", dependencies=[Depends(rate_limit("1/second", algo="LB", burst=2, clock=clock))])
    async def home() -> str:
        return "hello"

    assert statuses(app, "/", 3) == [200] * 3
    assert clock.now_us == 2_000_000


def test_who_is_cut_off_in_the_queue_gives_the_place_back() -> None:
    limit = RateLimit("1/day", algo="LB", burst=1)
    connection = HTTPConnection({"type": "http", "path": "/", "headers": [], "client": None})

    async def main() -> None:
        await limit(connection, Response())
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(limit(connection, Response()), 0.01)

    asyncio.run(main())


def test_a_websocket_route() -> None:
    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(rate_limit("1/minute"))])
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    async def main() -> None:
        first, second = Socket(app), Socket(app)
        await first.call
        await second.call
        assert [message["type"] for message in first.sent] == [
            "websocket.accept",
            "websocket.send",
            "websocket.close",
        ]
        assert [message["type"] for message in second.sent] == ["websocket.close"]

    asyncio.run(main())


def test_overridden_in_tests_as_any_dependency() -> None:
    limit = rate_limit("1/minute")
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit)])
    async def home() -> str:
        return "hello"

    app.dependency_overrides[limit] = lambda: None
    assert statuses(app, "/", 3) == [200] * 3


def test_many_at_once() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(rate_limit("5/minute"))])
    async def home() -> str:
        return "hello"

    async def main() -> list[int]:
        return [answer.status for answer in await asyncio.gather(*(aask(app) for _ in range(20)))]

    assert sorted(asyncio.run(main())) == [200] * 5 + [429] * 15


def test_an_actor_may_read_the_body() -> None:
    """Alice's attempts must not lock bob out: they come from one address."""
    app = FastAPI()

    async def login_name(request: Request) -> str:
        return str((await request.json())["name"])

    verdicts: list[Verdict] = []
    per_user = rate_limit(
        "1/minute", actor=login_name, observers=[lambda _, verdict: verdicts.append(verdict)]
    )

    @app.post("/login", dependencies=[Depends(per_user)])
    async def login(request: Request) -> str:
        return str((await request.json())["name"])

    def attempts(*bodies: bytes) -> list[int]:
        return [asyncio.run(aask(app, "/login", body, method="POST")).status for body in bodies]

    alice, bob = b'{"name": "alice"}', b'{"name": "bob"}'
    assert attempts(alice, alice, bob) == [200, 429, 200]
    assert not any(verdict.identity_errors for verdict in verdicts)


def test_an_actor_that_fails_is_in_the_verdict() -> None:
    app = FastAPI()
    verdicts: list[Verdict] = []

    async def login_name(request: Request) -> str:
        return str((await request.json())["name"])

    per_user = rate_limit(actor=login_name, observers=[lambda _, verdict: verdicts.append(verdict)])

    @app.post("/login", dependencies=[Depends(per_user)])
    async def login() -> str:
        return "hello"

    answer = asyncio.run(aask(app, "/login", b'{"user": "alice"}', method="POST"))
    assert answer.status == 200
    (verdict,) = verdicts
    assert [repr(error) for error in verdict.identity_errors.values()] == ["KeyError('name')"]
    assert "finding its account failed: KeyError('name')" in verdict.explain()


def test_a_body_of_the_limit_s_own() -> None:
    app = FastAPI()
    options: dict[str, Any] = {"body": "slow down", "status": 420, "clock": FakeClock()}

    @app.get("/decorator")
    @limited("1/hour", **options)
    async def decorator() -> str:
        return "hello"

    @app.get("/dependency", dependencies=[Depends(RateLimit("1/hour", **options))])
    async def dependency() -> str:
        return "hello"

    for path in ("/decorator", "/dependency"):
        assert ask(app, path).status == 200
        denied = ask(app, path)
        assert (denied.status, denied.body) == (420, b"slow down")
        assert denied.header("Retry-After") == "3600"


def test_of_several_limits_the_tightest_one_s_numbers_are_told() -> None:
    app = FastAPI()
    rates = ("3/minute", "10/day")
    for path, order in (("/one", rates), ("/two", rates[::-1])):
        limits = [RateLimit(rate, headers=["ietf", "legacy"], clock=FakeClock()) for rate in order]
        app.get(path, dependencies=[Depends(limit) for limit in limits])(lambda: "hello")
        answer = ask(app, path)
        assert answer.header("X-RateLimit-Limit") == "3"
        assert answer.header("X-RateLimit-Remaining") == "2"
        told = [line.split(";")[0] for line in answer.lines("RateLimit")]
        assert told == [f'"{rate} by ip"' for rate in order]
