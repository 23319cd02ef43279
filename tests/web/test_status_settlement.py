"""Rules that charge by the answer's status: what is given back, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from diana import AsyncGuard, Guard, Policy, Request, Verdict
from diana.asgi import RateLimitMiddleware as AsgiMiddleware
from diana.core.counter import CounterSpec
from diana.core.limit import Limit
from diana.stores import asynchronous
from diana.testing import FakeClock
from diana.web.status_settlement import StatusSettler
from diana.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.web.calls import aask, ask, ask_wsgi, policy, scope

LOGIN = (
    "url: /\nrules: [{name: wrong, actor: account, unit: hour, rpu: 5, algo: SL, scope: %s, "
    "status: 429, charge_on: [401, 403]}]"
)
ALICE = [("X-Account-Id", "alice")]


def wanted_status(path: str) -> int:
    return int(path.strip("/") or 200)


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/raise":
        raise RuntimeError("broken")
    if scope["path"] == "/silent":
        return
    status = wanted_status(scope["path"])
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b"answer"})


def asgi_left(app: AsgiMiddleware) -> int:
    request = Request("GET", "/", {"X-Account-Id": "alice"})
    return asyncio.run(app.guard.peek(request)).decisions[0].remaining + 1


def limited(app: Any = asgi_app, scope: str = "local", **options: Any) -> AsgiMiddleware:
    return AsgiMiddleware(app, policy(LOGIN % scope), clock=FakeClock(), **options)


@pytest.mark.parametrize(("status", "left"), [(200, 5), (302, 5), (500, 5), (401, 4), (403, 4)])
def test_an_asgi_app_s_status_decides(status: int, left: int) -> None:
    app = limited()
    assert ask(app, f"/{status}", headers=ALICE).status == status
    assert asgi_left(app) == left


def test_an_exception_counts_as_500() -> None:
    app = limited()
    with pytest.raises(RuntimeError, match="broken"):
        ask(app, "/raise", headers=ALICE)
    assert asgi_left(app) == 5
    by_500 = AsgiMiddleware(asgi_app, policy((LOGIN % "local").replace("[401, 403]", "5xx")))
    with pytest.raises(RuntimeError, match="broken"):
        ask(by_500, "/raise", headers=ALICE)
    assert asgi_left(by_500) == 4


@pytest.mark.parametrize("then", ["answers 200", "raises", "is cancelled"])
def test_a_client_that_leaves_before_its_answer_stays_charged(then: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert message["type"] == "http.disconnect"
        if then == "raises":
            raise RuntimeError("client disconnected")
        if then == "is cancelled":
            raise asyncio.CancelledError
        await asgi_app(scope, receive, send)

    some = limited(app)

    async def leave() -> None:
        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        await some(scope("/200", headers=ALICE), receive, send)

    if then == "answers 200":
        asyncio.run(leave())
    else:
        with pytest.raises((RuntimeError, asyncio.CancelledError)):
            asyncio.run(leave())
    assert asgi_left(some) == 4


def test_fifty_wrong_logins_at_once_reach_the_app_five_times(valkey_url: str) -> None:
    """Whatever the timing: all are admitted or denied before the first has its answer."""
    reached = []

    async def run() -> None:
        everybody_asked = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            reached.append(scope["path"])
            await everybody_asked.wait()
            await asgi_app(scope, receive, send)

        store = f"{valkey_url}?budget=10s"
        guard = AsyncGuard(policy(LOGIN % "global"), store)
        limited = AsgiMiddleware(app, guard=guard)
        guesses = [asyncio.ensure_future(aask(limited, "/401", headers=ALICE)) for _ in range(50)]
        denied = 0
        for guess in asyncio.as_completed(guesses):
            denied += (await guess).status == 429
            if denied == 45:
                everybody_asked.set()
        again = [await aask(limited, "/401", headers=ALICE) for _ in range(3)]
        assert [answer.status for answer in again] == [429] * 3
        await guard.close()

    asyncio.run(run())
    assert len(reached) == 5


def test_a_give_back_does_not_delay_the_answer(valkey_url: str) -> None:
    """The answer is complete while the store has not yet been told; when the guard closes, it has."""

    async def run() -> None:
        store = f"{valkey_url}?budget=10s"
        guard = AsyncGuard(policy(LOGIN % "global"), store)
        settling = asyncio.Event()
        side = asynchronous(guard._evaluator.shared)
        real = side.refund

        async def slow(*args: Any) -> None:
            await settling.wait()
            await real(*args)

        side.refund = slow  # type: ignore[method-assign, assignment]
        app = AsgiMiddleware(asgi_app, guard=guard)
        for _ in range(5):
            assert (await aask(app, "/200", headers=ALICE)).status == 200
        request = Request("GET", "/", {"X-Account-Id": "alice"})
        assert not await guard.peek(request)
        settling.set()
        await guard._later.close()
        assert (await guard.peek(request)).decisions[0].remaining == 4
        await guard.close()

    asyncio.run(run())


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    if environ["PATH_INFO"] == "/raise":
        raise RuntimeError("broken")
    start_response(f"{wanted_status(environ['PATH_INFO'])} Status", [])
    return [b"answer"]


def wsgi_generator(environ: Any, start_response: Any) -> Any:
    if environ["PATH_INFO"] == "/raise":
        raise RuntimeError("broken")
    start_response(f"{wanted_status(environ['PATH_INFO'])} Status", [])
    yield b"answer"


@pytest.mark.parametrize("app", [wsgi_app, wsgi_generator])
@pytest.mark.parametrize(("path", "left"), [("/200", 5), ("/401", 4), ("/raise", 5)])
def test_a_wsgi_app_s_status_decides(app: Any, path: str, left: int) -> None:
    some = WsgiMiddleware(app, policy(LOGIN % "local"), clock=FakeClock())
    if path == "/raise":
        with pytest.raises(RuntimeError, match="broken"):
            ask_wsgi(some, path, headers=ALICE)
    else:
        assert ask_wsgi(some, path, headers=ALICE).body == b"answer"
    request = Request("GET", "/", {"X-Account-Id": "alice"})
    assert some.guard.peek(request).decisions[0].remaining + 1 == left


def test_threads_give_back_in_the_background(valkey_url: str) -> None:
    guard = Guard(policy(LOGIN % "global"), f"{valkey_url}?budget=10s")
    app = WsgiMiddleware(wsgi_app, guard=guard)
    for _ in range(5):
        assert ask_wsgi(app, "/200", headers=ALICE).status == 200
    guard._later.close()
    request = Request("GET", "/", {"X-Account-Id": "alice"})
    assert guard.peek(request).decisions[0].remaining == 4
    guard.close()


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"type": "websocket.accept"}, 101),
        ({"type": "websocket.close"}, 403),
        ({"type": "websocket.http.response.start", "status": 401}, 401),
    ],
)
def test_a_handshake_has_a_status_too(message: dict[str, Any], status: int) -> None:
    settled: list[int] = []

    async def run() -> None:
        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(_: Any) -> None:
            pass

        async def settle(status: int) -> None:
            settled.append(status)

        outcome = StatusSettler(receive, send, settle)
        await outcome.receive()
        await outcome.send(message)
        await outcome.send(message)
        await outcome.settle(500)

    asyncio.run(run())
    assert settled == [status]


def test_a_tier_may_be_found_by_code() -> None:
    rules = "url: /\nrules: [{name: api, actor: ip, unit: minute, rpu: {pro: 60, else: 6}}]"
    plans = {"/pro": "pro", "/broken": ValueError("no plan")}

    def tier(request: Any) -> Any:
        found = plans.get(request.path)
        if isinstance(found, Exception):
            raise found
        return found

    for kind, asking in ((AsgiMiddleware, ask), (WsgiMiddleware, ask_wsgi)):
        app: Any = kind(
            asgi_app_ok if kind is AsgiMiddleware else wsgi_app_ok,  # type: ignore[arg-type]
            policy(rules),
            tier=tier,
            clock=FakeClock(),
        )
        assert asking(app, "/free").header("ratelimit-policy") == '"api";q=6;w=60'
        assert asking(app, "/broken").header("ratelimit-policy") == '"api";q=6;w=60'
        assert asking(app, "/pro").header("ratelimit-policy") == '"api";q=60;w=60'


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ValueError("no plan"), "ValueError('no plan')"),
        (["pro"], "TypeError('an identity is a str, an int or a UUID, not list')"),
    ],
)
def test_a_tier_that_code_fails_to_find_is_counted_and_logged_once(
    found: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    rules = "url: /\nrules: [{name: api, actor: ip, unit: minute, rpu: {pro: 60, else: 6}}]"

    def tier(_: Any) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    verdicts: list[Verdict] = []
    limited = WsgiMiddleware(
        wsgi_app_ok,
        policy(rules),
        tier=tier,
        clock=FakeClock(),
        observers=[lambda _, verdict: verdicts.append(verdict)],
    )
    for _ in range(2):
        assert ask_wsgi(limited, "/").header("ratelimit-policy") == '"api";q=6;w=60'
    assert [[*verdict.identity_errors] for verdict in verdicts] == [["api"], ["api"]]
    assert f"finding its tier failed: {said}" in verdicts[0].explain()
    assert limited.guard.identity_errors == 2
    assert caplog.messages == [f"finding the tier of rule 'api' failed: {said}"]


async def asgi_app_ok(scope: Any, receive: Any, send: Any) -> None:
    await asgi_app({**scope, "path": "/200"}, receive, send)


def wsgi_app_ok(environ: Any, start_response: Any) -> list[bytes]:
    return wsgi_app({**environ, "PATH_INFO": "/200"}, start_response)


class Slow:
    """An algorithm of somebody's own that tells everybody to wait."""

    code, spelling, options, identity = "SLOW", "slow", (), ()

    class Params:
        limit = 1_000

    def params(self, limit: Limit) -> Params:
        return self.Params()

    def decide(self, state: Any, params: Any, cost: int, now: int) -> Any:
        return (now,), (True, 1, 0, 0, 3_000_000)

    def refund(self, state: Any, params: Any, cost: int, at: int, now: int) -> Any:
        return state

    def promise(self, params: Any, interval_us: int) -> int:
        return 1_000


def test_what_an_algorithm_says_decides_about_holding() -> None:
    """Not its code: a plug-in's delay is waited out too."""
    slow: Any = Slow()
    rules = policy("url: /\nrules: [{name: slow, unit: second, rpu: 1}]")
    (rule,) = rules.rules
    meter = CounterSpec("slow", Limit(1, 1_000_000), slow, slow.params(Limit(1, 1_000_000)), {})
    rules = Policy([replace(rule, meter=meter)])
    clock = FakeClock()
    begin = clock()
    assert ask(AsgiMiddleware(asgi_app_ok, rules, clock=clock)).status == 200
    assert clock() - begin == 3_000_000
    assert ask_wsgi(WsgiMiddleware(wsgi_app_ok, rules, clock=clock)).status == 200
    assert clock() - begin == 6_000_000
