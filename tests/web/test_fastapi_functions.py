"""Limits of a route that functions of the request decide."""

from __future__ import annotations

import pytest
from fastapi import Depends, FastAPI, Request

from diana import ConfigError
from diana.fastapi import RateLimit
from diana.testing import FakeClock
from tests.web.calls import ask


def app_with(limit: RateLimit) -> FastAPI:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit)])
    async def home() -> str:
        return "hello"

    return app


def test_limit_allow_and_cost_may_be_functions_of_the_request() -> None:
    async def limit(request: Request) -> str:
        return "100/minute" if request.headers.get("x-plan") == "pro" else "10/minute"

    app = app_with(
        RateLimit(
            limit,
            name="by plan",
            allow=lambda request: request.headers.get("x-plan") == "staff",
            cost=lambda request: int(request.query_params.get("cost", 1)),
            clock=FakeClock(),
        )
    )
    assert ask(app).header("ratelimit") == '"by plan";r=9;t=6'
    assert ask(app, "/?cost=4").header("ratelimit") == '"by plan";r=5;t=6'
    pro = ask(app, headers=[("X-Plan", "pro")])
    assert pro.header("ratelimit-policy") == '"by plan";q=100;w=60'
    assert pro.header("ratelimit") == '"by plan";r=94;t=1'
    assert ask(app, headers=[("X-Plan", "staff")]).header("ratelimit") is None
    assert ask(app, "/?cost=11").status == 429


def test_what_a_dependency_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="give it a name="):
        RateLimit(lambda _: "5/minute")
    with pytest.raises(ConfigError, match="base_limit= is for a limit that is a function"):
        RateLimit("5/minute", base_limit="1/minute")
