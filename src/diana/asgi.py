"""Rules in front of an ASGI app: Starlette, FastAPI, Litestar, Quart, Django, your own.

A request is evaluated and, if it is denied, answered here. An allowed one is delayed if a leaky bucket demands it, and passed on with a
`send` that adds header lines to the message that begins the response; all other messages pass unchanged. Its slots are released after the
last message, or when the app has ended without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, NamedTuple

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.errors import ConfigError, DianaError, StoreError
from diana.core.verdict import Verdict
from diana.guard import AsyncGuard
from diana.responses.denial_response import ResponseBuilder
from diana.slots.wait_queue import Timer
from diana.web import request_charges as admissions
from diana.web import startup as workers
from diana.web.admission import (
    MIDDLEWARE,
    SCOPE_VERDICT,
    VERDICT,
    WAITING,
    DelayedRequest,
    Denied,
    beside_own_words,
    checked_answer,
    checked_denied,
    deny_instead,
    enter_in_loop,
    send_and_release,
)
from diana.web.asgi_send import send_admitted, send_beside
from diana.web.asgi_types import App, Message, Receive, Scope, Send
from diana.web.identity_callbacks import ARGUMENTS, Finder, Finders, afind
from diana.web.request_charges import (
    ADMISSION,
    Admission,
    Charged,
    RouteDenial,
    admission_of,
    report_of,
)
from diana.web.scope_request import ScopeRequest
from diana.web.startup import Rules, check_options, open_guard
from diana.web.status_settlement import StatusSettler

__all__ = ["RateLimitMiddleware"]


async def own_answer(denied: Denied, request: Any, verdict: Verdict) -> App | None:
    """The application's own answer to a denied request; None: Diana's."""
    own = denied(request, verdict)
    own = await own if isinstance(own, Awaitable) else own
    return checked_answer(own)


REFUSAL_OF_HANDSHAKES = "websocket.http.response"


class Close(NamedTuple):
    """How a WebSocket is closed whose handshake is denied."""

    code: int
    reason: str


TRY_AGAIN_LATER = Close(1013, "Too many requests")
POLICY_VIOLATION = Close(1008, "Forbidden")


def close_of(verdict: Verdict) -> Close:
    return TRY_AGAIN_LATER if verdict.listed is None else POLICY_VIOLATION


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
        rules: Rules | None = None,
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
        self.denied: Denied | None = None
        self._failure: DianaError | None = None
        self._owned, self._closed = guard is None, False
        if not enabled:
            return
        try:
            check_options(guard, rules, store, local_store, clock, observers)
            self.finders = Finders(account, device, tier)
            self.denied = checked_denied(denied)
            check = partial(self.finders.require, ARGUMENTS)
            options = (rules, store, local_store, clock, observers)
            self._open = partial(open_guard, AsyncGuard, *options, check)
            if guard is not None:
                check(guard.policy)
            self.guard = self._open() if guard is None else guard
        except (ConfigError, StoreError) as error:
            # Not raised here: frameworks make their middleware while the lifespan starts, and servers take an exception in that for an
            # app without one. They would start, and answer every request with 500.
            self._failure = error
            return
        workers.warn_of_several_workers(self.guard)
        self._timer = Timer(self.guard.clock)
        self._finders = self.finders if self.finders else None
        policy = self.guard.policy
        self._answers, self._version = ResponseBuilder(policy), policy.version
        self._waits = policy.waits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if self._failure is not None or not self.enabled:
            await self._pass_or_fail(scope, receive, send)
        elif kind == "http" or kind == "websocket":
            request = ScopeRequest(scope)
            try:
                await self._evaluate(request, scope, receive, send)
            finally:
                request.detach()
        elif kind == "lifespan":
            await self._live(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _evaluate(
        self, request: ScopeRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if workers.is_undecided:
            workers.look_again()
        if not self.guard.is_observed:
            await self._decide(request, scope, receive, send)
            return
        request.report, is_own = report_of(scope)
        try:
            await self._decide(request, scope, receive, send)
        finally:
            if is_own:
                request.report.send()

    async def _decide(
        self, request: ScopeRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if self._finders is not None:
            await self._identify(self._finders, request)
        if self._waits:
            await self._wait(request, scope, receive, send)
        else:
            await self._act(await self.guard.check(request), scope, receive, send)

    async def _act(self, verdict: Verdict, scope: Scope, receive: Receive, send: Send) -> None:
        guard = self.guard
        scope[VERDICT] = scope[SCOPE_VERDICT] = verdict
        scope[MIDDLEWARE] = self
        if verdict.version is not self._version:
            self._answers, self._version = ResponseBuilder(guard.policy), verdict.version
            self._waits = guard.policy.waits
        if not verdict.allowed:
            await self._refuse(scope, receive, send, verdict)
            return
        admission = admission_of(scope)
        charged = admission.add(guard, verdict)
        activity = guard.activity
        if activity is not None:
            enter_in_loop(activity)
        try:
            if verdict.match.holds:
                with guard.keep_slots(verdict) as held:
                    charged.held = held
                    sending = send_and_release(send, held)
                    passing = self._delay if verdict.delay else self._pass
                    await passing(scope, receive, sending, admission, charged)
            elif verdict.delay:
                await self._delay(scope, receive, send, admission, charged)
            else:
                await self._pass(scope, receive, send, admission, charged)
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
        admission: Admission | None = scope.get(ADMISSION)
        if admission is not None:
            await admission.arefund()  # what a middleware around this one charged
            if admission.report is not None:
                admission.report.send()
        status, headers, body = self._answers.denial(verdict)
        response = "http.response"
        if scope["type"] == "websocket":
            await receive()  # websocket.connect: before it nothing may be sent
            response = REFUSAL_OF_HANDSHAKES
            if response not in (scope.get("extensions") or ()):
                # The server makes a 403 of it.
                await send({"type": "websocket.close", "code": close_of(verdict).code})
                return
        elif self.denied is not None:
            own = await own_answer(self.denied, verdict.request, verdict)
            if own is not None:
                await own(scope, receive, send_beside(beside_own_words(headers), send))
                return
        if verdict.request.method == "HEAD":
            body = b""
        await send({"type": f"{response}.start", "status": status, "headers": headers})
        await send({"type": f"{response}.body", "body": body})

    async def _delay(
        self, scope: Scope, receive: Receive, send: Send, admission: Admission, charged: Charged
    ) -> None:
        """Until its delay is over; a client that leaves is refunded."""
        verdict = charged.verdict
        if WAITING.is_full:
            denied = deny_instead(verdict)
            scope[VERDICT] = scope[SCOPE_VERDICT] = denied
            if admission.report is not None:
                admission.report.replace(verdict, denied)
            await self._refuse(scope, receive, send, denied)
            return
        admission.report_wait()
        delayed = DelayedRequest(receive)
        try:
            with WAITING.place():
                stayed = await delayed.wait(verdict.delay, self._timer)
        except BaseException:
            charged.is_final = True
            await self.guard.refund(verdict)
            raise
        try:
            if stayed:
                await self._pass(scope, delayed.receive, send, admission, charged)
            else:
                charged.is_final = True
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
            # Raised as well: Starlette's TestClient waits for the exception, and would wait for ever.
            raise self._failure.with_traceback(None)
        else:
            raise self._failure.with_traceback(None)

    async def _pass(
        self, scope: Scope, receive: Receive, send: Send, admission: Admission, charged: Charged
    ) -> None:
        """To the app. Where the status of the response decides what is charged, a client that leaves before it stays charged."""
        fields = self._answers.fields(charged.verdict)
        if fields or self.denied is not None or admission.report is not None:
            answer = None if self.denied is None else partial(self._answer_route, scope, receive)
            send = send_admitted(fields, send, admission, charged, answer)
        if not (charged.verdict.match.by_outcome or admissions.routes_see_status):
            await self.app(scope, receive, send)
            return
        outcome = StatusSettler(receive, send, lambda status: admission.asettle(status, charged))
        try:
            await self.app(scope, outcome.receive, outcome.send)
        except Exception:
            await outcome.settle(500)
            raise

    async def _answer_route(
        self, scope: Scope, receive: Receive, charged: Charged, route: RouteDenial, send: Send
    ) -> bool:
        """Whether `denied` has answered a request that a limit on its route denied."""
        assert self.denied is not None  # noqa: S101  # it is only called where there is one
        own = await own_answer(self.denied, charged.verdict.request, route.verdict)
        if own is None:
            return False
        await own(scope, receive, send_beside(beside_own_words(route.denial.headers), send))
        return True

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What was opened here is closed after the app has shut down, and opened again if the app comes back."""

        async def noticing(message: Message) -> None:
            if self._owned and message["type"].startswith("lifespan.shutdown."):
                self._closed = True
                await self.guard.close()
            await send(message)

        if self._closed:
            self.guard, self._closed = self._open(), False
        await self.app(scope, receive, noticing)


def give_back_when_done(waiting: asyncio.Future[Verdict], guard: AsyncGuard) -> None:
    """Whoever waited has left: a place that is got in this very moment is given back."""

    def give_back(done: asyncio.Future[Verdict]) -> None:
        if not done.cancelled() and done.exception() is None:
            guard.keep_slots(done.result()).release()

    waiting.add_done_callback(give_back)
    waiting.cancel()
