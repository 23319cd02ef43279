"""Limits on routes of Litestar: each handler counts by itself, and what a client reads, also from a response cache."""

from __future__ import annotations

import asyncio
from typing import Any

import litestar
import pytest
from litestar.stores.memory import MemoryStore

import diana.litestar
from diana import ConfigError
from diana.testing import FakeClock
from tests.web.calls import Answer, aask, ask


def made(number: int, **options: Any) -> Any:
    @litestar.get(f"/f{number}", sync_to_thread=False, **options)
    def handler() -> str:
        return str(number)

    return handler


def app_of(*handlers: Any, **options: Any) -> Any:
    before_send = [diana.litestar.add_headers]
    return litestar.Litestar(handlers, before_send=before_send, openapi_config=None, **options)


def statuses(app: Any, *paths: str) -> list[int]:
    return [ask(app, path).status for path in paths]


def test_handlers_that_a_function_makes_count_by_themselves() -> None:
    guard = diana.litestar.rate_limit("2/minute", clock=FakeClock())
    app = app_of(made(1), made(2), guards=[guard])
    assert statuses(app, "/f1", "/f1", "/f2", "/f2", "/f2", "/f1") == [200] * 4 + [429] * 2


@pytest.mark.parametrize("paths", [["/f1", "/f2"], ["/f2", "/f1"]])
def test_handlers_have_the_same_numbers_whichever_is_called_first(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counters: dict[str, set[str]] = {}

    def observe(request: Any, verdict: Any) -> None:
        counters.setdefault(request.path, set()).add(verdict.meters[0].id)

    def guard() -> Any:
        return diana.litestar.rate_limit("9/minute", clock=FakeClock(), observers=[observe])

    for app in (
        app_of(made(2), made(1), guards=[guard()]),
        app_of(made(1, guards=[guard()]), made(2, guards=[guard()])),
    ):
        monkeypatch.setattr("diana.web.view_limits._taken", set())  # as in another process
        assert statuses(app, *paths) == [200, 200]
    (first,), (second,) = counters["/f1"], counters["/f2"]
    assert "#2" not in first
    assert "#2" in second


def test_two_guards_of_one_handler_count_apart_and_are_told_once() -> None:
    clock = FakeClock()

    def user(request: Any) -> str:
        return str(request.headers["x-user"])

    def org(request: Any) -> str:
        return str(request.headers["x-org"])

    guards = [
        diana.litestar.rate_limit(
            "2/minute", actor=actor, clock=clock, headers=["ietf", "legacy"], name=name
        )
        for actor, name in ((user, "user"), (org, "org"))
    ]
    app = app_of(made(1, guards=guards))

    def asked(user: str, org: str) -> Answer:
        return ask(app, "/f1", headers=[("X-User", user), ("X-Org", org)])

    asked("1", "7")
    answer = asked("2", "7")
    assert answer.lines("RateLimit") == ['"user";r=1;t=30', '"org";r=0;t=30']
    assert answer.header("X-RateLimit-Remaining") == "0"
    assert answer.header("X-RateLimit-Reset") == "60"
    assert [asked("7", "1").status, asked("7", "2").status] == [200, 200]
    unnamed = [diana.litestar.rate_limit("1/minute", actor=actor) for actor in (user, org)]
    app = app_of(made(1, guards=unnamed))
    assert [asked("7", "7").status, asked("1", "8").status] == [200, 200]


def test_the_numbers_of_the_app_itself_are_the_only_ones() -> None:
    @litestar.get("/", sync_to_thread=False, guards=[
        diana.litestar.rate_limit("2/minute", headers=["legacy"])
    ])  # fmt: skip
    def own() -> litestar.Response[str]:
        return litestar.Response("own", headers={"X-RateLimit-Limit": "7"})

    answer = ask(app_of(own))
    assert answer.header("X-RateLimit-Limit") == "7"
    assert answer.header("X-RateLimit-Remaining") is None


def test_a_cached_response_tells_a_client_its_own_numbers() -> None:
    store = MemoryStore()
    guard = diana.litestar.rate_limit(
        "9/hour", actor="header X-Key", clock=FakeClock(), headers=["ietf", "legacy"]
    )
    app = app_of(made(1, cache=60), guards=[guard], stores={"response_cache": store})

    async def play() -> list[Answer]:
        keys = ["alice", "alice", "alice", "bob", "bob"]
        return [await aask(app, "/f1", headers=[("X-Key", key)]) for key in keys]

    answers = asyncio.run(play())
    left = [answer.header("X-RateLimit-Remaining") for answer in answers]
    assert left == ["8", "7", "6", "8", "7"]
    found = [answer.header("RateLimit") or "" for answer in answers]
    assert [line.split(";")[1] for line in found] == [f"r={number}" for number in left]
    assert len(answers[3].lines("RateLimit-Policy")) == 1


def test_options_without_effect_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"body": "slow down"}, {"denied": lambda *_: None}]
    for option in wrong:
        with pytest.raises(ConfigError, match="has no effect here; Litestar answers"):
            diana.litestar.rate_limit("1/hour", **option)
    app = app_of(made(1, guards=[diana.litestar.rate_limit("1/hour", status=503)]))
    assert statuses(app, "/f1", "/f1") == [200, 503]


def test_a_controller_counts_each_of_its_handlers() -> None:
    class Items(litestar.Controller):
        path = "/items"
        guards = [diana.litestar.rate_limit("1/minute", clock=FakeClock())]

        @litestar.get("/", sync_to_thread=False)
        def listed(self) -> str:
            return "items"

        @litestar.post("/", sync_to_thread=False)
        def added(self) -> str:
            return "added"

    app = app_of(Items)
    asked = [("GET", 200), ("POST", 201), ("GET", 429), ("POST", 429)]
    for method, status in asked:
        assert ask(app, "/items", method=method).status == status
