"""Rules in front of an ASGI app, message by message."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from diana import AsyncGuard, ConfigError, Request, Verdict
from diana.asgi import RateLimitMiddleware
from diana.core.actor import Actor
from diana.testing import FakeClock
from diana.web.admission import MOST_BUFFERED, MOST_BUFFERED_IN_ALL, MOST_WAITING, WAITING
from diana.web.asgi_types import App, Message
from diana.web.scope_request import ScopeRequest
from tests.web.calls import aask, answer_from_messages, ask, hello, policy, scope

TWO_A_MINUTE = "url: /\nrules: [{name: you, actor: ip, unit: minute, rpu: 2}]"
BY_ACCOUNT = "url: /\nrules: [{name: account, actor: account, unit: hour, rpu: 1}]"


def limited(rules: str, app: App = hello, **options: Any) -> RateLimitMiddleware:
    options.setdefault("clock", FakeClock())
    return RateLimitMiddleware(app, policy(rules), **options)


def statuses(app: App, times: int, path: str = "/", **request: Any) -> list[int]:
    return [ask(app, path, **request).status for _ in range(times)]


def test_requests_over_the_limit_never_reach_the_app() -> None:
    reached = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await hello(scope, receive, send)

    assert statuses(limited(TWO_A_MINUTE, app), 4) == [200, 200, 503, 503]
    assert reached == ["/", "/"]


def test_headers_are_added_to_what_the_app_says() -> None:
    app = limited(TWO_A_MINUTE)
    answer = ask(app)
    assert answer.body == b"hello"
    assert answer.header("content-type") == "text/plain"
    assert answer.header("ratelimit-policy") == '"you";q=2;w=60'
    assert answer.header("ratelimit") == '"you";r=1;t=30'
    ask(app)
    denied = ask(app)
    assert denied.header("retry-after") == "30"
    assert json.loads(denied.body)["retry_after"] == 30


def test_a_file_of_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"diana\.yaml: cannot be read"):
        ask(RateLimitMiddleware(hello))
    Path("diana.yaml").write_text(TWO_A_MINUTE)
    assert statuses(RateLimitMiddleware(hello), 3) == [200, 200, 503]
    assert statuses(RateLimitMiddleware(hello, rules=tmp_path / "diana.yaml"), 3)[-1] == 503


def test_a_guard_of_ones_own() -> None:
    guard = AsyncGuard(policy(TWO_A_MINUTE), clock=FakeClock())
    assert statuses(RateLimitMiddleware(hello, guard=guard), 3) == [200, 200, 503]
    with pytest.raises(ConfigError, match="a guard has its own rules"):
        ask(RateLimitMiddleware(hello, "diana.yaml", guard=guard))


def test_rules_that_are_exchanged_answer_as_they_say() -> None:
    app = limited(TWO_A_MINUTE)
    assert ask(app).header("ratelimit") == '"you";r=1;t=30'
    app.guard = AsyncGuard(
        policy(
            "response: {status: 429}\nlimits: [{url: /, rules: [{name: new, unit: hour, rpu: 1}]}]"
        )
    )
    assert ask(app).header("ratelimit") == '"new";r=0;t=3600'
    assert ask(app).status == 429


def test_observers_are_told() -> None:
    told: list[tuple[str, bool]] = []

    def observer(request: Request, verdict: Verdict) -> None:
        told.append((request.path, verdict.allowed))

    statuses(limited(TWO_A_MINUTE, observers=[observer]), 3, "/a%20b")
    assert told == [("/a%20b", True), ("/a%20b", True), ("/a%20b", False)]


def test_head_counts_as_get_and_has_no_body() -> None:
    app = limited("url: /\nmethods: [GET]\nrules: [{unit: minute, rpu: 1}]")
    assert ask(app, method="HEAD").status == 200
    denied = ask(app, method="HEAD")
    assert (denied.status, denied.body) == (503, b"")
    assert int(denied.header("content-length") or 0) > 100
    assert ask(app, method="POST").status == 200


def test_a_preflight_is_limited_by_the_rules_that_name_it() -> None:
    app = limited("url: /\nmethods: [OPTIONS]\nrules: [{unit: minute, rpu: 1}]")
    preflight = [("Origin", "https://example.org"), ("Access-Control-Request-Method", "PUT")]
    assert statuses(app, 2, method="OPTIONS", headers=preflight) == [200, 503]
    assert statuses(app, 2, method="PUT") == [200, 200]


def test_the_apps_own_header_lines_stay() -> None:
    own = [(b"ratelimit", b'"own";r=1'), (b"X-RateLimit-Limit", b"7")]
    start = {"type": "http.response.start", "status": 200, "headers": own}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start)
        await send({"type": "http.response.body", "body": b""})

    some = limited(
        "response: {headers: [ietf, legacy]}\nlimits:\n- " + _indented(TWO_A_MINUTE), app
    )
    for left in (1, 0):
        answer = ask(some)
        assert answer.lines("ratelimit") == ['"own";r=1', f'"you";r={left};t=30']
        assert answer.lines("x-ratelimit-limit") == ["7"]
        assert answer.lines("x-ratelimit-reset") == []
    assert start["headers"] == own
    assert limited_by_legacy().header("x-ratelimit-reset") == "30"


def limited_by_legacy() -> Any:
    return ask(limited("response: {headers: [legacy]}\nlimits:\n- " + _indented(TWO_A_MINUTE)))


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


@pytest.mark.parametrize(
    ("sent", "counted"),
    [
        ({"path": "/api/login", "raw_path": b"/api/login", "root_path": "/api"}, ("api", "login")),
        ({"path": "/login", "raw_path": b"/api/login", "root_path": "/api"}, ("api", "login")),
        ({"path": "/login", "raw_path": None, "root_path": "/api"}, ("api", "login")),
        ({"path": "/api/login", "raw_path": None, "root_path": "/api"}, ("api", "login")),
        ({"path": "/apilogin", "raw_path": None, "root_path": "/api"}, ("api", "apilogin")),
        ({"path": "/api", "raw_path": None, "root_path": "/api/"}, ("api",)),
        ({"path": "/100%41?", "raw_path": None}, ("100%41?",)),
        ({"path": "/\udcff", "raw_path": None}, ("\udcff",)),
        ({"path": "/é", "raw_path": "/é".encode()}, ("é",)),
        ({"path": "/é", "raw_path": b"/%C3%A9"}, ("é",)),
        ({"path": "/\udcff", "raw_path": b"/\xff"}, ("\udcff",)),
        ({"path": "", "raw_path": b""}, ()),
    ],
)
def test_the_path_is_the_one_the_client_sent(sent: dict[str, Any], counted: tuple[str]) -> None:
    assert ScopeRequest({**scope(), **sent}).segments == counted


@pytest.mark.parametrize("url", ["/login", "/api/login"])
@pytest.mark.parametrize("raw", [True, False])
def test_a_rule_covers_an_app_below_a_path_with_and_without_it(url: str, raw: bool) -> None:
    for path in ("/login", "/api/login"):
        app = limited(f"url: {url}\nrules: [{{unit: hour, rpu: 1}}]")
        more: dict[str, Any] = (
            {"root_path": "/api"} if raw else {"root_path": "/api", "raw_path": None}
        )
        assert [ask(app, path, **more).status for _ in range(2)] == [200, 503]


def test_a_scope_with_the_least_in_it() -> None:
    request = ScopeRequest({"type": "websocket", "path": "/x", "headers": []})
    assert (request.method, request.path, request.query, request.peer) == ("GET", "/x", "", None)


def test_who_comes_through_a_unix_socket_is_limited_together() -> None:
    assert statuses(limited(TWO_A_MINUTE), 3, peer=None) == [200, 200, 503]


def test_what_is_not_http_passes_untouched() -> None:
    passed: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.extend((scope, receive, send))

    given: list[Any] = [{"type": "mqtt"}, object(), object()]
    asyncio.run(limited(TWO_A_MINUTE, app)(*given))
    assert all(one is other for one, other in zip(passed, given, strict=True))


def test_everything_else_an_app_may_send_passes_untouched() -> None:
    messages: list[dict[str, Any]] = [
        {"type": "http.response.early_hint", "links": [b"</style.css>; rel=preload"]},
        {"type": "http.response.start", "status": 200, "headers": [], "trailers": True},
        {"type": "http.response.body", "body": b"1", "more_body": True},
        {"type": "http.response.pathsend", "path": "/etc/hostname"},
        {
            "type": "http.response.zerocopysend",
            "file": 7,
            "offset": 0,
            "count": 9,
            "more_body": True,
        },
        {"type": "http.response.push", "path": "/style.css", "headers": []},
        {"type": "http.response.trailers", "headers": [(b"digest", b"x")], "more_trailers": False},
    ]
    sent: list[Message] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nobody asked")

    asyncio.run(limited(TWO_A_MINUTE, app)(scope(), receive, send))
    assert sent[1].pop("headers")
    assert messages[1].pop("headers") == []
    assert sent == messages
    assert all(
        one is other for one, other in zip(sent, messages, strict=True) if "status" not in one
    )


def test_what_the_app_raises_is_raised_and_the_charge_stands() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("the app's own")

    some = limited(TWO_A_MINUTE, app)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the app's own"):
            ask(some)
    assert ask(some).status == 503


# Held: a leaky bucket's delay

QUEUE = "url: /\nrules: [{name: queue, unit: second, rpu: 1, algo: LB, burst: 2}]"


class Client:
    """What a client sends, when the test says so, and what it gets."""

    def __init__(self, app: App, **request: Any) -> None:
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self.call = asyncio.ensure_future(app(scope(**request), self.incoming.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def sends(self, body: bytes, more: bool = False) -> None:
        self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leaves(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})


class SlowClock(FakeClock):
    """Who sleeps on it sleeps until the test says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep_for: list[float] = []
        self.awake = asyncio.Event()

    async def asleep(self, seconds: float) -> None:
        self.asleep_for.append(seconds)
        await self.awake.wait()
        self.advance(seconds)


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def test_a_request_is_held_as_long_as_the_queue_says() -> None:
    clock = FakeClock()
    app = limited(QUEUE, clock=clock)
    times = []
    for _ in range(3):
        assert ask(app).status == 200
        times.append(clock.now_us)
    assert times == [0, 1_000_000, 2_000_000]


def test_what_a_held_client_sends_is_kept_for_the_app() -> None:
    async def main() -> None:
        clock = SlowClock()
        app = limited(QUEUE, echo, clock=clock)
        await aask(app)
        client = Client(app)
        client.sends(b"one ", more=True)
        await until(client.incoming.empty)
        client.sends(b"two ", more=True)
        await until(client.incoming.empty)
        assert clock.asleep_for == [1.0]
        clock.awake.set()
        client.sends(b"three")
        await client.call
        assert answer_from_messages(client.sent).body == b"one two three"

    asyncio.run(main())


def test_a_message_that_comes_as_the_turn_comes_is_not_lost() -> None:
    async def main() -> None:
        clock = SlowClock()
        app = limited(QUEUE, echo, clock=clock)
        await aask(app)
        client = Client(app)
        await until(lambda: clock.asleep_for)
        clock.awake.set()
        client.sends(b"at the very moment")
        await client.call
        assert answer_from_messages(client.sent).body == b"at the very moment"

    asyncio.run(main())


def test_a_held_client_cannot_fill_the_memory() -> None:
    async def main() -> None:
        clock = SlowClock()
        app = limited(QUEUE, echo, clock=clock)
        await aask(app)
        client = Client(app)
        for _ in range(10):
            client.sends(b"x" * MOST_BUFFERED, more=True)
        client.sends(b"")
        await until(lambda: clock.asleep_for)
        for _ in range(100):
            await asyncio.sleep(0)
        assert client.incoming.qsize() == 9
        clock.awake.set()
        await client.call
        assert len(answer_from_messages(client.sent).body) == 10 * MOST_BUFFERED

    asyncio.run(main())


BY_KEY = "url: /\nrules: [{name: k, actor: header X-Key, unit: minute, rpu: 1, algo: LB, burst: 1}]"


def test_no_more_than_so_many_wait_at_once_whatever_keys_they_choose() -> None:
    async def main() -> None:
        clock = SlowClock()
        app = limited(BY_KEY, echo, clock=clock)
        waiting = []
        for number in range(MOST_WAITING):
            headers = [("X-Key", str(number))]
            assert (await aask(app, headers=headers)).status == 200
            waiting.append(Client(app, headers=headers))
        await until(lambda: len(clock.asleep_for) == MOST_WAITING)
        assert (await aask(app, headers=[("X-Key", "other")])).status == 200
        denied = [await aask(app, headers=[("X-Key", "other")]) for _ in range(3)]
        assert [answer.status for answer in denied] == [503] * 3, "the queue's place is given back"
        assert [answer.header("retry-after") for answer in denied] == ["60"] * 3
        waiting[0].leaves()
        await waiting[0].call
        last = Client(app, headers=[("X-Key", "other")])
        await until(lambda: len(clock.asleep_for) == MOST_WAITING + 1)
        clock.awake.set()
        for client in (*waiting[1:], last):
            client.sends(b"")
            await client.call
        assert WAITING.requests == WAITING.bytes == 0

    asyncio.run(main())


def test_bodies_of_all_that_wait_are_bounded_together() -> None:
    async def main() -> None:
        clock = SlowClock()
        app = limited(BY_KEY, echo, clock=clock)
        clients, piece = [], MOST_BUFFERED // 4
        for number in range(2 * MOST_BUFFERED_IN_ALL // MOST_BUFFERED):
            headers = [("X-Key", str(number))]
            await aask(app, headers=headers)
            clients.append(client := Client(app, headers=headers))
            for more in (True, True, True, False):
                client.sends(b"x" * piece, more)
        await until(lambda: len(clock.asleep_for) == len(clients))
        for _ in range(100):
            await asyncio.sleep(0)
        assert WAITING.bytes <= MOST_BUFFERED_IN_ALL + len(clients) * piece
        clock.awake.set()
        for client in clients:
            await client.call
            assert len(answer_from_messages(client.sent).body) == MOST_BUFFERED
        assert WAITING.requests == WAITING.bytes == 0

    asyncio.run(main())


@pytest.mark.parametrize("how", ["leaves", "is cut off"])
def test_who_leaves_gives_the_place_back(how: str) -> None:
    async def main() -> None:
        clock = SlowClock()
        reached: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            reached.append(scope)
            await hello(scope, receive, send)

        some = limited(QUEUE, app, clock=clock)
        await aask(some)
        waiting = [Client(some) for _ in range(2)]
        await until(lambda: clock.asleep_for == [1.0, 2.0])
        assert (await aask(some)).status == 503
        if how == "leaves":
            waiting[1].leaves()
            await waiting[1].call
        else:
            waiting[1].call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting[1].call
        assert waiting[1].sent == []
        late = Client(some)
        await until(lambda: clock.asleep_for == [1.0, 2.0, 2.0])
        clock.awake.set()
        await asyncio.gather(waiting[0].call, late.call)
        assert len(reached) == 3

    asyncio.run(main())


def test_clients_that_leave_a_queue_do_not_delay_the_next_request() -> None:
    """18 of 21 clients leave a queue of 5 a second after half a second; three have been released."""

    async def main() -> None:
        clock = SlowClock()
        rule = "url: /\nrules: [{name: queue, unit: second, rpu: 5, algo: LB, burst: 20}]"
        some = limited(rule, clock=clock)
        clients = [Client(some) for _ in range(21)]
        await until(lambda: len(clock.asleep_for) == 20)
        clock.advance(0.5)
        for client in clients[3:]:
            client.leaves()
            await client.call
        late = Client(some)
        await until(lambda: len(clock.asleep_for) == 21)
        assert clock.asleep_for[-1] == pytest.approx(0.1)
        clock.awake.set()
        await asyncio.gather(late.call, *[client.call for client in clients[:3]])

    asyncio.run(main())


def test_a_held_app_may_wait_for_a_client_that_leaves_later() -> None:
    async def main() -> None:
        seen: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(receive(), 0.001)
            client.leaves()
            seen.append((await receive())["type"])

        some = limited(QUEUE, app)
        (await some.guard.check(ScopeRequest(scope())))
        client = Client(some)
        await client.call
        assert seen == ["http.disconnect"]

    asyncio.run(main())


def test_a_server_that_fails_while_a_request_is_held() -> None:
    async def main() -> None:
        async def receive() -> Message:
            raise ConnectionError("gone")

        async def send(message: Message) -> None: ...

        clock = SlowClock()
        some = limited(QUEUE, clock=clock)
        await aask(some)
        with pytest.raises(ConnectionError):
            await some(scope(), receive, send)
        assert (await some.guard.check(ScopeRequest(scope()))).delay == 1.0

    asyncio.run(main())


# WebSocket


class Socket:
    """A WebSocket client, as the server's side of ASGI sees it."""

    def __init__(self, app: App, **more: Any) -> None:
        self.sent: list[Message] = []
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming.put_nowait({"type": "websocket.connect"})
        made = {**scope(), "type": "websocket", "subprotocols": [], **more}
        made.pop("method")
        self.call = asyncio.ensure_future(app(made, self._incoming.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def says(self, text: str) -> None:
        self._incoming.put_nowait({"type": "websocket.receive", "text": text})

    def leaves(self) -> None:
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})


def test_a_websocket_is_limited_by_its_handshake() -> None:
    async def main() -> None:
        app = limited(TWO_A_MINUTE)
        for left in (1, 0):
            socket = Socket(app)
            for word in ("one", "two", "three"):
                socket.says(word)
            socket.leaves()
            await socket.call
            accept, *rest = socket.sent
            assert accept["type"] == "websocket.accept"
            assert dict(accept["headers"])[b"ratelimit"].startswith(b'"you";r=%d;' % left)
            assert [message["text"] for message in rest] == ["one", "two", "three"]
        refused = Socket(app)
        await refused.call
        assert refused.sent == [{"type": "websocket.close", "code": 1013}]
        answered = Socket(app, extensions={"websocket.http.response": {}})
        await answered.call
        start, body = answered.sent
        assert (start["type"], start["status"]) == ("websocket.http.response.start", 503)
        assert dict(start["headers"])[b"retry-after"] == b"30"
        assert json.loads(body["body"])["status"] == 503

    asyncio.run(main())


def test_a_websocket_is_held_too() -> None:
    async def main() -> None:
        clock = SlowClock()
        app = limited(QUEUE, clock=clock)
        first = Socket(app)
        first.leaves()
        await first.call
        waiting, leaving = Socket(app), Socket(app)
        waiting.says("hello")
        leaving.leaves()
        await leaving.call
        assert leaving.sent == []
        clock.awake.set()
        await until(lambda: len(waiting.sent) == 2)
        waiting.leaves()
        await waiting.call
        assert [message["type"] for message in waiting.sent] == [
            "websocket.accept",
            "websocket.send",
        ]

    asyncio.run(main())


# Lifespan


def lifespan_app(log: list[str]) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            return await hello(scope, receive, send)
        while True:
            message = await receive()
            log.append(message["type"])
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return None

    return app


async def live(app: App, while_up: Callable[[], Awaitable[Any]]) -> list[str]:
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    sent: list[str] = []

    async def send(message: Message) -> None:
        sent.append(message["type"])

    call = asyncio.ensure_future(app({"type": "lifespan"}, incoming.get, send))
    incoming.put_nowait({"type": "lifespan.startup"})
    await until(lambda: sent)
    await while_up()
    incoming.put_nowait({"type": "lifespan.shutdown"})
    await call
    return sent


def test_lifespan_reaches_the_app_and_an_app_may_live_again() -> None:
    log: list[str] = []
    app = limited(TWO_A_MINUTE, lifespan_app(log))
    guards: list[AsyncGuard] = []

    async def used() -> None:
        guards.append(app.guard)
        for status in (200, 200, 503):
            assert (await aask(app)).status == status

    async def main() -> None:
        for _ in range(2):
            sent = await live(app, used)
            assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(main())
    assert log == ["lifespan.startup", "lifespan.shutdown"] * 2
    assert guards[0] is not guards[1]  # what was closed is not used again


def test_a_guard_of_ones_own_outlives_the_app() -> None:
    guard = AsyncGuard(policy(TWO_A_MINUTE), clock=FakeClock())
    app = RateLimitMiddleware(lifespan_app([]), guard=guard)

    async def main() -> None:
        for _ in range(2):
            await live(app, lambda: aask(app))

    asyncio.run(main())
    assert app.guard is guard
    assert ask(app).status == 503


def test_without_lifespan_it_works_as_well() -> None:
    app = limited(TWO_A_MINUTE)

    async def nothing() -> Message:
        raise AssertionError

    async def send(message: Message) -> None: ...

    with pytest.raises(NotImplementedError):
        asyncio.run(app({"type": "lifespan"}, nothing, send))
    assert statuses(app, 3) == [200, 200, 503]


# Who is asking, in code


@pytest.mark.parametrize("name", ["alice", 17, 0])
def test_a_function_says_who_is_asking(name: object) -> None:
    app = limited(BY_ACCOUNT, account=lambda request: request.scope["user"])
    assert statuses(app, 2, user=name) == [200, 503]
    assert ask(app, user="bob").status == 200


def test_a_coroutine_function_may_say_it_too() -> None:
    async def account(request: ScopeRequest) -> str | None:
        await asyncio.sleep(0)
        return request.header("x-api-key")

    app = limited(BY_ACCOUNT, account=account)
    assert statuses(app, 2, headers=[("X-Api-Key", "k1")]) == [200, 503]
    assert ask(app, headers=[("X-Api-Key", "k2")]).status == 200


def test_what_code_says_wins_over_what_clients_say() -> None:
    app = limited(BY_ACCOUNT, account=lambda _: "alice")
    assert ask(app, headers=[("X-Account-Id", "one")]).status == 200
    assert ask(app, headers=[("X-Account-Id", "two")]).status == 503
    nobody = limited(BY_ACCOUNT, account=lambda _: None)
    assert ask(nobody, headers=[("X-Account-Id", "one")]).status == 200
    assert ask(nobody, headers=[("X-Account-Id", "two")]).status == 503


def test_it_is_only_called_if_a_rule_counts_by_it() -> None:
    called: list[str] = []

    def account(request: Request) -> str:
        called.append(f"account {request.path}")
        return "alice"

    def device(request: Request) -> str:
        called.append(f"device {request.path}")
        return "phone"

    rules = """
    - url: /
      rules: [{actor: ip, unit: hour, rpu: 9}, {actor: header X-Account, unit: hour, rpu: 9}]
    - url: /a
      rules: [{actor: [ip, account], unit: hour, rpu: 9}, {actor: account, unit: hour, rpu: 9}]
    - url: /a/b
      rules: [{actor: device, unit: hour, rpu: 9}]
    """
    app = limited(rules, account=account, device=device)
    for path in ("/", "/a", "/a/b"):
        assert ask(app, path).status == 200
    assert called == ["account /a", "account /a/b", "device /a/b"]


def test_an_actor_says_which_functions_it_needs() -> None:
    text = "- {{url: /, rules: [{{actor: {actor}, unit: hour, rpu: 9}}]}}"
    for actor, kinds in (
        ("[ip, account]", {"account"}),
        ("header account", set()),
        ("all", set()),
        ("device", {"device"}),
    ):
        assert policy(text.format(actor=actor)).match(Request()).kinds == kinds


def test_actors_of_others_may_look_at_both() -> None:
    assert Actor(lambda _, __: lambda _: None).kinds == {"account", "device"}


@pytest.mark.parametrize("found", [object(), True, 1.5, b"alice", ["alice"]])
def test_an_identity_that_is_none_is_an_error_of_the_request(
    found: object, caplog: pytest.LogCaptureFixture
) -> None:
    app = limited(BY_ACCOUNT, account=lambda _: found)
    assert statuses(app, 2) == [200, 503]
    assert ask(app, peer="198.51.100.1").status == 200
    assert app.guard.identity_errors == 3
    assert "an identity is a str, an int or a UUID, not" in caplog.text


def test_a_function_that_raises_is_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def account(request: Request) -> str:
        raise LookupError("no session")

    app = limited(BY_ACCOUNT, account=account)
    with caplog.at_level(logging.WARNING, "diana"):
        assert statuses(app, 3) == [200, 503, 503]
    assert app.guard.identity_errors == 3
    # Of this thread: that of a store which an earlier test has left behind may have to say something, too.
    ours = [record for record in caplog.records if record.thread == threading.get_ident()]
    assert [record.getMessage() for record in ours] == [
        "finding the account of rule 'account' failed: LookupError('no session')"
    ]


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="account is 'X-User'; give a function of the request"):
        ask(limited(BY_ACCOUNT, account="X-User"))
