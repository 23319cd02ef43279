"""Limits that run before FastAPI reads the body."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, Request

from diana.fastapi import LimitedRoute, RateLimit, exempt
from diana.fastapi import rate_limit as limited
from diana.testing import FakeClock
from diana.web.asgi_types import Message
from tests.web.calls import Answer, aask, answer_from_messages, scope


def rate_limit(limit: str = "2/minute", **options: Any) -> RateLimit:
    options.setdefault("clock", FakeClock())
    return RateLimit(limit, **options)


def app_of(router: APIRouter) -> FastAPI:
    app = FastAPI()
    app.include_router(router)
    return app


def post(app: FastAPI, path: str, body: bytes = b"{}", **headers: str) -> Answer:
    pairs = [("Content-Type", "application/json"), *headers.items()]
    return asyncio.run(aask(app, path, body, method="POST", headers=pairs))


def received(app: FastAPI, path: str) -> tuple[int, int]:
    """The status, and how many messages of the body were taken."""
    sent: list[Message] = []
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b'"', "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope(path, method="POST"), receive, send))
    return answer_from_messages(sent).status, taken


def orders(limit: RateLimit, route_class: Any = LimitedRoute) -> FastAPI:
    router = APIRouter(route_class=route_class)

    @router.post("/orders", dependencies=[Depends(limit)])
    async def order(items: list[int]) -> int:
        return len(items)

    return app_of(router)


def test_a_denied_body_is_not_read() -> None:
    app = orders(rate_limit("1/minute"))
    assert received(app, "/orders") == (422, 1)
    assert received(app, "/orders") == (429, 0)


def test_a_body_that_is_not_valid_is_counted() -> None:
    app = orders(rate_limit("2/minute"))
    assert [post(app, "/orders", body).status for body in (b"[", b"{}", b"[1]")] == [422, 422, 429]


def test_what_an_ordinary_route_cannot_do() -> None:
    """Why there is such a class: the body comes first, and what is not valid is never counted."""
    from fastapi.routing import APIRoute

    app = orders(rate_limit("1/minute"), APIRoute)
    assert [post(app, "/orders", body).status for body in (b"[", b"[", b"[1]", b"[1]")] == [
        422,
        422,
        200,
        429,
    ]
    status, taken = received(app, "/orders")
    assert status in (422, 429)  # what comes first depends on the version of FastAPI
    assert taken == 1


def test_a_request_is_charged_once_and_told_what_is_left() -> None:
    app = orders(rate_limit("3/minute"))
    answers = [post(app, "/orders", b"[1, 2]") for _ in range(3)]
    assert [answer.body for answer in answers] == [b"2"] * 3
    assert [answer.header("ratelimit") for answer in answers] == [
        f'"3/minute by ip";r={left};t=20' for left in (2, 1, 0)
    ]


def test_limits_of_the_router_of_a_decorator_and_exemptions() -> None:
    shared = rate_limit("3/minute")
    router = APIRouter(route_class=LimitedRoute, dependencies=[Depends(shared)])

    @router.post("/a")
    @limited(rate_limit("1/minute"))
    async def first(items: list[int] = Body()) -> int:  # noqa: B008
        return len(items)

    @router.post("/b")
    async def second(items: list[int]) -> int:
        return len(items)

    @router.post("/free")
    @exempt
    async def free(items: list[int]) -> int:
        return len(items)

    app = app_of(router)
    assert [post(app, "/a", b"[").status for _ in range(3)] == [422, 429, 429]
    assert [post(app, "/b", b"[").status for _ in range(3)] == [422, 422, 429], "all or nothing"
    assert [post(app, "/free", b"[]").status for _ in range(5)] == [200] * 5


def test_a_function_behind_a_dependency_stays_behind_it() -> None:
    async def login(request: Request) -> None:
        request.state.user = request.headers["x-user"]

    per_user = rate_limit("1/minute", actor=lambda request: request.state.user)
    router = APIRouter(route_class=LimitedRoute)

    @router.post("/me", dependencies=[Depends(login), Depends(per_user)])
    async def me() -> str:
        return "hello"

    app = app_of(router)
    statuses = [post(app, "/me", b"", **{"X-User": user}).status for user in ("ann", "bob", "ann")]
    assert statuses == [200, 200, 429]
    assert per_user.guard.identity_errors == 0


def test_a_function_that_stands_first_runs_before_the_body() -> None:
    by_key = rate_limit("1/minute", actor=lambda request: request.headers["x-key"])
    app = orders(by_key)
    assert post(app, "/orders", b"[", **{"X-Key": "a"}).status == 422
    assert post(app, "/orders", b"[", **{"X-Key": "a"}).status == 429


def test_a_limit_that_a_test_overrides_does_not_run() -> None:
    limit = rate_limit("1/minute")
    app = orders(limit)
    app.dependency_overrides[limit] = lambda: None
    assert [post(app, "/orders", b"[1]").status for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("path", ["/x/../orders", "//orders"])
def test_other_spellings_are_other_routes(path: str) -> None:
    app = orders(rate_limit("1/minute"))
    assert post(app, path, b"[1]").status == 404
