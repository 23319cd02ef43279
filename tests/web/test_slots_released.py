"""Places (`algo: C`) are given back when the answer is sent, the client has left or the app has failed; never twice, never before."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from uuid import uuid4

import pytest
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import diana.fastapi
import diana.flask
import diana.starlette
from diana import AsyncGuard, ConfigError, Guard, Request
from diana.asgi import RateLimitMiddleware as Asgi
from diana.stores.zone.zone_file import remove_zone_file
from diana.web.asgi_types import App, Message
from diana.wsgi import RateLimitMiddleware as Wsgi
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.web import django_site  # noqa: F401  # sets Django up
from tests.web.calls import aask, ask, ask_wsgi, environ, hello, policy, scope

FIVE = "{url: /, rules: [{actor: ip, algo: C, most: 5, name: five}]}"
ONE = "{url: /, rules: [{algo: C, most: 1, hold: 300ms, name: one}]}"
MANY = 10_000


@pytest.fixture(params=["memory", "shared", "redis"])
def guard(request: pytest.FixtureRequest) -> Iterator[AsyncGuard]:
    """Of five at once; another store is one more line here."""
    if request.param == "memory":
        yield AsyncGuard(policy(FIVE))
    elif request.param == "shared":
        zone = f"holding-{uuid4().hex[:12]}"
        local = f"shared://{zone}?size=4m"
        yield AsyncGuard(policy(f"{{local_store: '{local}', limits: [{FIVE}]}}"))
        remove_zone_file(zone)
    else:
        redis7: Server = request.getfixturevalue("redis7")
        redis7.ask("FLUSHALL")
        rules = FIVE.replace("most: 5", "most: 5, scope: global")
        yield AsyncGuard(policy(rules), f"{redis7.url}?budget=10s")


async def all_free(guard: AsyncGuard, most: int = 5) -> None:
    """Places in a store elsewhere are given back in the background."""
    for _ in range(400):
        found = await guard.peek(_request())
        if found.decisions[0].remaining == most - 1:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"only {found.decisions[0].remaining + 1} places are free")


def _request() -> Request:
    return Request("GET", "/", [], "", "203.0.113.9")


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def nowhere(_: Message) -> None:
    await asyncio.sleep(0)


async def sleepy(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


async def failing(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0)
    raise KeyError("the app fails")


async def endless(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(3600)


async def leaving(scope: Any, receive: Any, send: Any) -> None:
    """An app that ends when its client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _crowd(app: App, receive: Any = never, at_once: int = 50) -> list[Any]:
    """Ten thousand requests, some of them side by side."""
    ends: list[Any] = []
    for _ in range(MANY // at_once):
        calls = [app(scope(), receive, nowhere) for _ in range(at_once)]
        ends += await asyncio.gather(*calls, return_exceptions=True)
    return ends


def test_10000_answered_requests_leak_nothing(guard: AsyncGuard) -> None:
    async def play() -> None:
        await _crowd(Asgi(sleepy, guard=guard))
        await all_free(guard)
        await guard.close()

    asyncio.run(play())


def test_10000_failing_requests_leak_nothing(guard: AsyncGuard) -> None:
    async def play() -> None:
        ends = await _crowd(Asgi(failing, guard=guard))
        assert any(isinstance(end, KeyError) for end in ends)
        await all_free(guard)
        await guard.close()

    asyncio.run(play())


def test_10000_disconnected_requests_leak_nothing(guard: AsyncGuard) -> None:
    async def gone() -> Message:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def play() -> None:
        await _crowd(Asgi(leaving, guard=guard), gone)
        await all_free(guard)
        await guard.close()

    asyncio.run(play())


def test_10000_cancelled_requests_leak_nothing(guard: AsyncGuard) -> None:
    async def play() -> None:
        app = Asgi(endless, guard=guard)
        for step in range(MANY // 50):
            tasks = [asyncio.create_task(app(scope(), never, nowhere)) for _ in range(50)]
            for _ in range(step % 7):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await all_free(guard)
        await guard.close()

    asyncio.run(play())


def test_a_place_is_free_behind_the_last_piece_though_the_app_goes_on() -> None:
    async def play() -> None:
        guard = AsyncGuard(policy(ONE.replace("300ms", "60s")))
        ended = asyncio.Event()

        async def streaming(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            assert not await guard.peek(_request())
            await send({"type": "http.response.body", "body": b"b"})
            assert await guard.peek(_request())
            ended.set()

        await Asgi(streaming, guard=guard)(scope(), never, nowhere)
        assert ended.is_set()

    asyncio.run(play())


def test_a_stream_of_ten_times_its_hold_keeps_its_place() -> None:
    async def play() -> None:
        guard = AsyncGuard(policy(ONE.replace("300ms", "600ms")))
        ends, passed = time.monotonic() + 6, []

        async def streaming(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while time.monotonic() < ends:
                await send({"type": "http.response.body", "body": b"a", "more_body": True})
                passed.append(bool(await guard.peek(_request())))
                await asyncio.sleep(0.02)
            await send({"type": "http.response.body", "body": b""})

        await Asgi(streaming, guard=guard)(scope(), never, nowhere)
        # A process that stands still for longer than `hold` loses the place, and says so.
        assert not any(passed) or guard.expired_slots, "a stream lost its place, unnoticed"
        assert await guard.peek(_request())

    asyncio.run(play())


def test_a_websocket_holds_its_place_until_it_ends() -> None:
    async def play() -> None:
        guard = AsyncGuard(policy("{url: /, rules: [{algo: C, most: 1}]}"))
        told: asyncio.Queue[Message] = asyncio.Queue()
        echoed: asyncio.Queue[Message] = asyncio.Queue()
        app = Asgi(hello, guard=guard)
        socket = asyncio.create_task(app({**scope(), "type": "websocket"}, told.get, echoed.put))
        await told.put({"type": "websocket.connect"})
        assert (await echoed.get())["type"] == "websocket.accept"
        await told.put({"type": "websocket.receive", "text": "here"})
        assert (await echoed.get())["text"] == "here"
        assert (await aask(app)).status == 503
        await told.put({"type": "websocket.disconnect"})
        await socket
        assert (await aask(app)).status == 200

    asyncio.run(play())


def test_what_a_denied_client_is_told() -> None:
    async def play() -> tuple[Any, Any]:
        app = Asgi(endless, policy(FIVE.replace("5", "1")))
        inside = asyncio.create_task(app(scope(), never, nowhere))
        await asyncio.sleep(0)
        denied = await aask(app)
        inside.cancel()
        return denied, await aask(Asgi(sleepy, policy(FIVE)))

    denied, passed = asyncio.run(play())
    assert denied.status == 503
    assert denied.header("Retry-After") is None
    assert denied.header("RateLimit-Policy") == '"five";q=1;qu="concurrent-requests"'
    assert denied.header("RateLimit") == '"five";r=0'
    told = json.loads(denied.body)
    assert told["detail"].startswith("Too many requests at once.")
    assert told["type"].endswith("quota-exceeded")
    assert "retry_after" not in told
    assert passed.header("RateLimit") == '"five";r=4'


def test_retry_is_told_where_the_rule_says_it() -> None:
    async def play() -> Any:
        app = Asgi(
            endless,
            policy(
                "{limits: [{url: /, rules: [{algo: C, most: 1, retry: 2s}]}], response: {headers: [ietf, legacy, retry-after]}}"
            ),
        )
        inside = asyncio.create_task(app(scope(), never, nowhere))
        await asyncio.sleep(0)
        denied = await aask(app)
        inside.cancel()
        return denied

    denied = asyncio.run(play())
    assert denied.header("Retry-After") == "2"
    assert denied.header("X-RateLimit-Remaining") == "0"
    assert denied.header("X-RateLimit-Reset") is None


def test_a_request_waits_for_a_place_and_who_leaves_gives_up() -> None:
    async def play() -> None:
        guard = AsyncGuard(policy("{url: /, rules: [{algo: C, most: 1, max_wait: 60s}]}"))
        first, left = asyncio.Event(), asyncio.Event()
        order: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            order.append(scope["path"])
            if scope["path"] == "/first":
                await first.wait()
            await sleepy(scope, receive, send)

        async def leave() -> Message:
            await left.wait()
            return {"type": "http.disconnect"}

        limited = Asgi(app, guard=guard)
        tasks = [asyncio.create_task(limited(scope("/first"), never, nowhere))]
        for path, receive in (("/gone", leave), ("/second", never)):
            await asyncio.sleep(0.01)
            tasks.append(asyncio.create_task(limited(scope(path), receive, nowhere)))
        await asyncio.sleep(0.05)
        left.set()
        await tasks[1]
        first.set()
        await asyncio.gather(*tasks)
        assert order == ["/first", "/second"]
        assert await guard.peek(_request())

    asyncio.run(play())


def wsgi_app(environ: Any, start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", [])
    yield b"a"
    yield b"b"


def test_wsgi_gives_it_back_where_the_server_closes() -> None:
    guard = Guard(policy(ONE.replace("300ms", "60s")))
    app = Wsgi(wsgi_app, guard=guard)
    body = app(environ(), lambda *_: None)
    assert next(iter(body)) == b"a"
    assert ask_wsgi(app).status == 503
    body.close()  # type: ignore[attr-defined]
    assert ask_wsgi(app).body == b"ab"
    assert ask_wsgi(app).status == 200


def test_wsgi_gives_it_back_if_the_app_fails_or_the_server_forgets_it() -> None:
    def fails(environ: Any, start_response: Any) -> list[bytes]:
        raise KeyError

    guard = Guard(policy(ONE.replace("300ms", "60s")))
    for _ in range(MANY):
        with pytest.raises(KeyError):
            Wsgi(fails, guard=guard)(environ(), lambda *_: None)
    app = Wsgi(wsgi_app, guard=guard)
    for _ in range(3):
        until(lambda: bool(guard.peek(_request())), "it is given back")
        app(environ(), lambda *_: None)  # and never closed


def test_wsgi_waits_for_a_place() -> None:
    guard = Guard(policy("{url: /, rules: [{algo: C, most: 1, max_wait: 60s}]}"))
    app = Wsgi(wsgi_app, guard=guard)
    first = app(environ(), lambda *_: None)
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(ask_wsgi(app).status))
    waiting.start()
    until(lambda: bool(guard._evaluator.queues), "it stands in line")
    assert not answers
    first.close()  # type: ignore[attr-defined]
    waiting.join()
    assert answers == [200]


def test_on_a_route_of_flask() -> None:
    app = Flask(__name__)

    @app.get("/")
    @diana.flask.rate_limit("1 at once")
    def stream() -> Any:
        return app.response_class(iter(["a", "b"]))

    @app.get("/fails")
    @diana.flask.rate_limit("1 at once")
    def fails() -> Any:
        raise KeyError

    client = app.test_client()
    first = client.get("/")
    assert client.get("/").status_code == 429
    first.close()
    assert client.get("/").status_code == 200
    for _ in range(3):
        assert client.get("/fails", buffered=True).status_code == 500


def test_on_a_route_of_fastapi_as_dependency_and_as_decorator() -> None:
    app = FastAPI()
    inner: list[Any] = []

    async def ask_again(path: str) -> Any:
        async def body() -> Any:
            yield b"a"
            inner.append(await aask(app, path))
            yield b"b"

        inner.append(await aask(app, path))
        return StreamingResponse(body())

    @app.get("/dependency", dependencies=[Depends(diana.fastapi.RateLimit("1 at once"))])
    async def dependency() -> Any:
        return await ask_again("/dependency")

    @app.get("/decorator")
    @diana.fastapi.rate_limit("1 at once")
    async def decorator() -> Any:
        return await ask_again("/decorator")

    @app.get("/fails", dependencies=[Depends(diana.fastapi.RateLimit("1 at once"))])
    def fails() -> None:
        raise KeyError

    for path in ("/dependency", "/decorator"):
        for _ in range(3):
            assert ask(app, path).body == b"ab"
        assert [answer.status for answer in inner] == [429] * 6
        assert json.loads(inner[0].body)["detail"].startswith("Too many requests at once.")
        inner.clear()
    for _ in range(3):
        with pytest.raises(KeyError):
            ask(app, "/fails")


def test_on_a_route_of_starlette() -> None:
    inner: list[int] = []

    @diana.starlette.rate_limit("1 at once")
    async def stream(request: StarletteRequest) -> Any:
        async def body() -> Any:
            yield b"a"
            answer = await aask(app, "/")
            inner.append(answer.status)
            yield b"b"

        return StreamingResponse(body())

    @diana.starlette.rate_limit("1 at once")
    def plain(request: StarletteRequest) -> Any:
        return PlainTextResponse("plain")

    @diana.starlette.rate_limit("1 at once")
    async def fails(request: StarletteRequest) -> Any:
        raise KeyError

    app = Starlette(routes=[Route("/", stream), Route("/plain", plain), Route("/fails", fails)])
    for _ in range(3):
        assert ask(app, "/").body == b"ab"
        assert ask(app, "/plain").status == 200
        with pytest.raises(KeyError):
            ask(app, "/fails")
    assert inner == [429] * 3


def test_two_limits_on_a_stream_of_starlette_both_hold_their_slots() -> None:
    inner: list[int] = []

    def decorated(endpoint: Any) -> Any:
        async def setting_a_header(request: StarletteRequest) -> Any:
            response = await endpoint(request)
            assert isinstance(response, Response)
            response.headers["X-Own"] = "1"
            response.status_code = response.status_code + 1
            return response

        return setting_a_header

    def limited(outer: str, within: str, path: str) -> Route:
        @diana.starlette.rate_limit(outer, name="outer")
        @decorated
        @diana.starlette.rate_limit(within, name="inner")
        async def stream(request: StarletteRequest) -> Any:
            async def body() -> Any:
                yield b"a"
                inner.append((await aask(app, path)).status)
                yield b"b"

            return StreamingResponse(body())

        return Route(path, stream)

    app = Starlette(
        routes=[
            limited("1 at once", "100 at once", "/outer"),
            limited("100 at once", "1 at once", "/inner"),
            limited("100/hour", "1 at once", "/rate"),
        ]
    )
    for path in ("/outer", "/inner", "/rate"):
        for _ in range(2):
            answer = ask(app, path)
            assert (answer.status, answer.body, answer.header("X-Own")) == (201, b"ab", "1")
            assert [line.split(";")[0] for line in answer.lines("RateLimit")] == [
                '"outer"',
                '"inner"',
            ]
    assert inner == [429, 429, 430, 430, 430, 430]


def test_a_response_of_starlette_that_a_decorator_replaces() -> None:
    @diana.starlette.rate_limit("1 at once")
    async def plain(request: StarletteRequest) -> Any:
        return PlainTextResponse("plain")

    async def replaced(request: StarletteRequest) -> Any:
        response = await plain(request)
        return PlainTextResponse("other", response.status_code)

    app = Starlette(routes=[Route("/", replaced)])
    for _ in range(3):
        until(lambda: ask(app).status == 200, "it is released")


@pytest.mark.parametrize("fails", [False, True])
def test_a_response_of_flask_that_the_app_replaces(fails: bool) -> None:
    app = Flask(__name__)

    @app.get("/")
    @diana.flask.rate_limit("1 at once")
    def stream() -> Any:
        return app.response_class(iter(["a", "b"]))

    @app.after_request
    def replaced(response: Any) -> Any:
        if fails and response.status_code == 200:
            raise KeyError
        return app.response_class(response.response, response.status_code)

    client = app.test_client()
    gc.disable()  # a slot that only the collector finds is lost for seconds
    try:
        for _ in range(3):
            first = client.get("/")
            assert first.status_code == (500 if fails else 200)
            assert client.get("/").status_code == 429
            first.close()
        app.testing = fails
        for _ in range(3):
            with pytest.raises(KeyError) if fails else nullcontext():
                client.get("/").close()
    finally:
        gc.enable()


def test_where_nobody_tells_the_end_it_is_refused() -> None:
    import diana.litestar
    import diana.rest_framework

    with pytest.raises(ConfigError, match="nobody tells when the answer has been sent"):
        diana.litestar.rate_limit("5 at once")
    with pytest.raises(ConfigError, match="nobody tells when the answer has been sent"):
        diana.rest_framework.rate_limit("5 at once")
