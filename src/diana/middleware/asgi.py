"""Rules in front of an ASGI app: Starlette, FastAPI, Litestar, Quart, Django, your own.

What happens to a request, in order: it is read, judged, answered if denied; delayed if a leaky bucket says so; passed on with a `send` that
adds header lines to the one message that begins the response. All other messages pass as they are. Places that it took are given back
behind the last of them, or when the app has ended without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.errors import ConfigError
from diana.core.policy import Policy
from diana.core.request import Request, one_of
from diana.core.verdict import Verdict
from diana.guard import AsyncGuard
from diana.middleware.answer import Answers, Fields
from diana.middleware.at_hand import (
    MIDDLEWARE,
    VERDICT,
    Denied,
    beside_own_words,
    checked_denied,
)
from diana.middleware.delay import WAITING, DelayedRequest, deny_instead
from diana.middleware.holding import send_and_release
from diana.middleware.identity import Finder, Finders, afind
from diana.middleware.inside import enter_in_loop
from diana.middleware.opening import check_options, open_guard
from diana.middleware.outcome import Outcome
from diana.middleware.workers import warn_after_fork, warn_of_several_workers
from diana.waiting import Timer

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BEGINS_RESPONSE = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start"}
)
SINGLE = b"x-ratelimit-"
"""The older fields: one number each."""
REFUSAL_OF_HANDSHAKES = "websocket.http.response"
TRY_AGAIN_LATER = 1013


class ScopeRequest(Request):
    """What rules see of an ASGI scope; the scope itself is there as `scope`."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        # Written out, not by way of Request's own: this is done for every request, and half of it is the call.
        raw: bytes | None = scope.get("raw_path")
        client = scope.get("client")
        self.scope = scope
        self.method = scope.get("method", "GET")
        # As the client sent it, whatever an app was mounted at: rules are written for what clients see.
        self.path = raw.decode("utf-8", "surrogateescape") if raw else _path_of_mounted(scope)
        self.headers: Any = scope["headers"]
        root = scope.get("root_path")
        self.mount = quote(root, errors="surrogateescape") if root else ""
        self.query = scope.get("query_string", b"").decode("latin-1")
        self.peer = client[0] if client else None
        self.identities = None
        self.identity_errors = None
        self._segments = None
        self._fields = None

    def header_lines(self, name: str) -> list[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for field, value in self.headers if field == wanted]

    def detach(self) -> None:
        self.scope = {}

    def header(self, name: str) -> str | None:
        # ASGI has the names in small letters, as bytes. Looking for one costs a tenth of reading them all.
        wanted = name.encode("latin-1")
        found: bytes | None = None
        for field, value in self.headers:
            if field == wanted:
                if found is not None:
                    return one_of(self.header_lines(name))
                found = value
        return None if found is None else found.decode("latin-1").strip() or None


class RateLimitMiddleware:
    """`app.add_middleware(RateLimitMiddleware, rules="diana.yaml")`, or `RateLimitMiddleware(app, …)` around any ASGI app.

    `rules` is a file or a Policy, and the middleware closes what it opens when the app's lifespan ends; a `guard` is closed by its
    owner. `account`, `device` and `tier` are functions, plain or async, of a `Request` that has the `scope` too; `denied` is one of that
    request and the verdict, and gives an ASGI app, such as a Response of Starlette. The app finds the verdict as `scope["diana"]`.

    What is wrong with the rules fails the start of the server, or, without lifespan, every request.
    """

    def __init__(
        self,
        app: App,
        rules: str | Path | Policy | None = None,
        *,
        guard: AsyncGuard | None = None,
        account: Finder | None = None,
        device: Finder | None = None,
        tier: Finder | None = None,
        denied: Denied | None = None,
        enabled: bool = True,
        store: str | Store | Client | None = None,
        local_store: str | Store | None = None,
        clock: Clock | None = None,
        observers: Sequence[str | Observer] = (),
    ) -> None:
        self.app = app
        self.enabled = enabled
        self._failure: ConfigError | None = None
        self._open = partial(open_guard, AsyncGuard, rules, store, local_store, clock, observers)
        self._owned, self._closed = guard is None, False
        if not enabled:
            return
        try:
            check_options(guard, rules, store, local_store, clock, observers)
            self.finders = Finders(account, device, tier)
            self._denied = checked_denied(denied)
            self.guard = self._open() if guard is None else guard
        except ConfigError as error:
            # Not raised here: frameworks make their middleware while the lifespan starts, and servers take an exception in that for an
            # app without one. They would start, and answer every request with 500.
            self._failure = error
            return
        warn_of_several_workers(self.guard)
        self._timer = Timer(self.guard.clock)
        self._finders = self.finders if self.finders else None
        policy = self.guard.policy
        self._answers, self._version = Answers(policy), policy.version
        self._waits = policy.waits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if self._failure is not None or not self.enabled:
            await self._pass_or_fail(scope, receive, send)
        elif kind == "http" or kind == "websocket":
            request = ScopeRequest(scope)
            try:
                await self._judge(request, scope, receive, send)
            finally:
                request.detach()
        elif kind == "lifespan":
            await self._live(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _judge(
        self, request: ScopeRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        guard = self.guard
        if self._finders is not None:
            await self._identify(self._finders, request)
        if self._waits:
            await self._wait(request, scope, receive, send)
        else:
            await self._act(await guard.check(request), scope, receive, send)

    async def _act(self, verdict: Verdict, scope: Scope, receive: Receive, send: Send) -> None:
        guard = self.guard
        scope[VERDICT], scope[MIDDLEWARE] = verdict, self
        if verdict.version is not self._version:
            self._answers, self._version = Answers(guard.policy), verdict.version
            self._waits = guard.policy.waits
        activity = guard.activity if verdict.allowed else None
        if activity is not None:
            enter_in_loop(activity)
        try:
            if not verdict.allowed:
                await self._refuse(scope, receive, send, verdict)
            elif verdict.match.holds:
                with guard.held(verdict) as held:
                    sending = send_and_release(send, held)
                    passing = self._delay if verdict.delay else self._pass_by_outcome
                    await passing(scope, receive, sending, verdict)
            elif verdict.delay:
                await self._delay(scope, receive, send, verdict)
            elif verdict.match.by_outcome:
                await self._pass_by_outcome(scope, receive, send, verdict)
            else:
                fields = self._answers.fields(verdict)
                await self.app(scope, receive, send_with(fields, send) if fields else send)
        finally:
            if activity is not None:
                activity.leave()

    async def _identify(self, finders: Finders, request: ScopeRequest) -> None:
        needed = finders.needed(self.guard.policy, request)
        if needed:
            request.identities = {
                kind: await afind(finder, request) for kind, finder in needed.items()
            }

    async def _wait(
        self, request: ScopeRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Wait for a place, if a rule says so; the client may leave meanwhile."""
        guard = self.guard
        verdict, line = await guard._begin_wait(request)
        if line is None:
            await self._act(verdict, scope, receive, send)
            return
        if WAITING.is_full:
            await self._act(await guard.check(request), scope, receive, send)
            return
        delayed = DelayedRequest(receive)
        waiting = asyncio.ensure_future(guard._end_wait(request, verdict, line))
        with WAITING.place():
            try:
                stayed = await delayed.wait_for(waiting)
            except BaseException:
                give_back_when_done(waiting, guard)
                raise
        try:
            if stayed:
                await self._act(waiting.result(), scope, delayed.receive, send)
            else:
                give_back_when_done(waiting, guard)
        finally:
            delayed.close()

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, verdict: Verdict) -> None:
        status, headers, body = self._answers.denial(verdict)
        response = "http.response"
        if scope["type"] == "websocket":
            await receive()  # websocket.connect: before it nothing may be sent
            response = REFUSAL_OF_HANDSHAKES
            if response not in (scope.get("extensions") or ()):
                # The server makes a 403 of it.
                await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})
                return
        elif self._denied is not None:
            own = self._denied(verdict.request, verdict)
            own = await own if isinstance(own, Awaitable) else own
            if own is not None:
                await own(scope, receive, send_beside(beside_own_words(headers), send))
                return
        if verdict.request.method == "HEAD":
            body = b""
        await send({"type": f"{response}.start", "status": status, "headers": headers})
        await send({"type": f"{response}.body", "body": body})

    async def _delay(self, scope: Scope, receive: Receive, send: Send, verdict: Verdict) -> None:
        """Until its delay is over; a client that leaves gives its place back."""
        if WAITING.is_full:
            await self.guard.refund(verdict)
            await self._refuse(scope, receive, send, deny_instead(verdict))
            return
        delayed = DelayedRequest(receive)
        try:
            with WAITING.place():
                stayed = await delayed.wait(verdict.delay, self._timer)
        except BaseException:
            await self.guard.refund(verdict)
            raise
        try:
            if stayed:
                await self._pass_by_outcome(scope, delayed.receive, send, verdict)
            else:
                await self.guard.refund(verdict)
        finally:
            delayed.close()

    async def _pass_or_fail(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Without rules: because there shall be none, or because they are wrong."""
        if self._failure is None:
            scope[MIDDLEWARE] = self
            await self.app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await receive()  # lifespan.startup
            await send({"type": "lifespan.startup.failed", "message": str(self._failure)})
        else:
            raise self._failure.with_traceback(None)

    async def _pass_by_outcome(
        self, scope: Scope, receive: Receive, send: Send, verdict: Verdict
    ) -> None:
        """The app's answer decides what is charged; a client that leaves before it is charged in any case."""
        fields = self._answers.fields(verdict)
        adding = send_with(fields, send) if fields else send
        if not verdict.match.by_outcome:
            await self.app(scope, receive, adding)
            return
        outcome = Outcome(
            receive, adding, lambda status: self.guard.settle_later(verdict, status=status)
        )
        try:
            await self.app(scope, outcome.receive, outcome.send)
        except Exception:
            await outcome.settle(500)
            raise

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What was opened here is closed after the app has shut down, and opened again if the app comes back."""

        async def noticing(message: Message) -> None:
            if self._owned and message["type"].startswith("lifespan.shutdown."):
                self._closed = True
                await self.guard.close()
            await send(message)

        warn_after_fork(self.guard)
        if self._closed:
            self.guard, self._closed = self._open(), False
        await self.app(scope, receive, noticing)


def give_back_when_done(waiting: asyncio.Future[Verdict], guard: AsyncGuard) -> None:
    """Whoever waited has left: a place that is got in this very moment is given back."""

    def give_back(done: asyncio.Future[Verdict]) -> None:
        if not done.cancelled() and done.exception() is None:
            guard.held(done.result()).release()

    waiting.add_done_callback(give_back)
    waiting.cancel()


def send_with(fields: Fields, send: Send) -> Send:
    """`send` that adds header lines where the response begins.

    The app's own lines stay: `RateLimit` and its policy are lists, and lines of a list add up. Of the older fields, which are single
    numbers, the app's own are the only ones.
    """

    single = fields[-1][0].startswith(SINGLE)

    def adding(message: Message) -> Awaitable[None]:
        if message["type"] in BEGINS_RESPONSE:
            own = message.get("headers") or ()
            added = not_twice(fields, own) if single else fields
            # Not in place: an app may send the same message again.
            message = {**message, "headers": [*own, *added]}
        return send(message)

    return adding


def send_beside(fields: Fields, send: Send) -> Send:
    """`send` that adds the header lines that an answer of the application's own to a denied request lacks."""

    def adding(message: Message) -> Awaitable[None]:
        if message["type"] in BEGINS_RESPONSE:
            own = message.get("headers") or ()
            names = {name.lower() for name, _ in own}
            added = [field for field in fields if field[0] not in names]
            message = {**message, "headers": [*own, *added]}
        return send(message)

    return adding


def not_twice(fields: Fields, own: Any) -> Fields:
    if any(name.lower().startswith(SINGLE) for name, _ in own):
        return [field for field in fields if not field[0].startswith(SINGLE)]
    return fields


def _path_of_mounted(scope: Scope) -> str:
    """From servers that keep no raw path; some of them take the mount's own path off."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    full = path if path == root or path.startswith(f"{root}/") else root + path
    return quote(full, errors="surrogateescape")
