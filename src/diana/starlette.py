"""Limits on routes of Starlette: `@rate_limit("10/minute")` on functions, on endpoint classes and on their methods.

Also what the limits on routes of Starlette, FastAPI and Litestar share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from starlette.concurrency import run_in_threadpool
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from diana.asgi import RateLimitMiddleware, close_of, own_answer
from diana.core.errors import ConfigError
from diana.core.verdict import Verdict
from diana.responses.denial_response import DenialResponse, Fields
from diana.slots.acquired_slots import AcquiredSlots
from diana.web.admission import (
    MIDDLEWARE,
    SCOPE_VERDICT,
    Denied,
    beside_own_words,
    send_and_release,
)
from diana.web.asgi_send import BEGINS_RESPONSE, SINGLE, send_beside, send_with
from diana.web.asgi_types import App, Message, Receive, Scope, Send
from diana.web.request_charges import ADMISSION, Admission
from diana.web.route_headers import remember, remembered
from diana.web.route_limit import Checked, RouteLimit
from diana.web.scope_request import ScopeRequest
from diana.web.view_limits import ViewLimits, marked

__all__ = ["RateLimitMiddleware", "rate_limit"]


NEEDS_MIDDLEWARE = (
    "charge_on= of rate_limit needs the status of the response, which only the middleware sees here; "
    "put diana.asgi.RateLimitMiddleware around the app"
)


async def check_route(limit: RouteLimit, asked: Any, scope: MutableMapping[str, Any]) -> Checked:
    """Charge the request; `asked` is the framework's own."""
    middleware = scope.get(MIDDLEWARE)
    if limit.sees_status and middleware is None and limit.enabled:
        raise ConfigError(NEEDS_MIDDLEWARE)
    finders = getattr(middleware, "finders", None)
    checked = await limit.acheck(ScopeRequest(scope), asked, scope, finders)
    if checked.verdict is not None:
        scope[SCOPE_VERDICT] = checked.verdict
    return checked


def denied_of(limit: RouteLimit, scope: MutableMapping[str, Any]) -> Denied | None:
    """What answers a request that the limit denies, as a function of the framework's request and the verdict: the limit's own `denied`, or
    the middleware's unless the limit has words of its own."""
    if limit.denied is not None or limit.has_body:
        return limit.denied
    denied: Denied | None = getattr(scope.get(MIDDLEWARE), "denied", None)
    if denied is None:
        return None

    def of_request(connection: Any, verdict: Verdict) -> Any:
        return denied(ScopeRequest(connection.scope), verdict)

    return of_request


def keep_response(scope: MutableMapping[str, Any]) -> None:
    """The route answers a denied request by itself; the middleware does not replace the response."""
    admission: Admission | None = scope.get(ADMISSION)
    if admission is not None:
        admission.route_denial = None


F = TypeVar("F", bound=Callable[..., Any])


def rate_limit(limit: str, **options: Any) -> Callable[[F], F]:
    """Limit an endpoint: `@rate_limit("5/minute", actor="header X-Api-Key")`.

    On a function of the request (or the WebSocket), plain or async, on a class of endpoints, and on a method of one.
    """
    limits = ViewLimits(RouteLimit, limit, options)

    def decorate(endpoint: F) -> F:
        route_limit = limits.of(endpoint)
        if isinstance(endpoint, type):
            return cast("F", _limit_class(endpoint, route_limit))

        @wraps(endpoint)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            connection = _connection(args, kwargs)
            checked = await check_route(route_limit, connection, connection.scope)
            is_outermost = remember(checked, connection.scope)
            if checked.denial is not None and checked.verdict is not None:
                if isinstance(connection, WebSocket):
                    await connection.close(*close_of(checked.verdict))
                    return None
                return await answer_denied(route_limit, checked.denial, connection, checked.verdict)
            held = checked.held
            try:
                if iscoroutinefunction(endpoint):
                    returned = await endpoint(*args, **kwargs)
                else:
                    returned = await run_in_threadpool(endpoint, *args, **kwargs)
            except BaseException:
                if held is not None:
                    held.release()
                raise
            if is_outermost and isinstance(returned, Response):
                add_fields(remembered(connection.scope), returned)
            return returned if held is None else release_behind(returned, held)

        return cast("F", marked(limited))

    return decorate


async def answer_denied(
    limit: RouteLimit, denial: DenialResponse, connection: HTTPConnection, verdict: Verdict
) -> Response:
    keep_response(connection.scope)
    denied = denied_of(limit, connection.scope)
    return await response_from_denial(denial, denied, connection, verdict)


async def response_from_denial(
    denial: DenialResponse, denied: Denied | None, connection: HTTPConnection, verdict: Verdict
) -> Response:
    """The application's own answer, or Diana's."""
    status, fields, body = denial
    if denied is not None:
        own = await own_answer(denied, connection, verdict)
        if isinstance(own, Response):
            names = {name for name, _ in own.raw_headers}
            own.raw_headers += [
                field for field in beside_own_words(fields) if field[0] not in names
            ]
            return own
        if own is not None:
            return cast("Response", _AnsweringApp(own, fields))
    response = Response(b"" if connection.scope.get("method") == "HEAD" else body, status)
    response.raw_headers = list(fields)
    return response


class _AnsweringApp:
    """An ASGI app that answers a denied request, with the header lines that it lacks. It is sent as a Response is."""

    def __init__(self, app: App, fields: Fields) -> None:
        self._app = app
        self._fields = beside_own_words(fields)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send_beside(self._fields, send))


def add_fields(fields: Fields, response: Response) -> None:
    single = any(name.startswith(SINGLE) for name, _ in response.raw_headers)
    response.raw_headers += [
        field for field in fields if not (single and field[0].startswith(SINGLE))
    ]


class _Releasing:
    """Stands for a response and releases its slots behind its last piece. To decorators around the endpoint it is that response."""

    __slots__ = ("_held", "_response")

    def __init__(self, response: Response, held: AcquiredSlots) -> None:
        object.__setattr__(self, "_response", response)
        object.__setattr__(self, "_held", held)

    @property  # type: ignore[misc]  # a proxy is allowed to
    def __class__(self) -> Any:
        return type(self._response)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._response, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._response, name)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._held as held:
            await self._response(scope, receive, send_and_release(send, held))


def release_behind(returned: Any, held: AcquiredSlots) -> Any:
    """What an endpoint returned: of a response its places are given back when it is sent; of anything else (a WebSocket's end), now."""
    if isinstance(returned, Response):
        return _Releasing(returned, held)
    held.release()
    return returned


def _limit_class(kind: type, limit: RouteLimit) -> type:
    """All methods of the class together: one count."""
    if not issubclass(kind, HTTPEndpoint | WebSocketEndpoint):
        raise ConfigError(f"{kind.__name__} is no endpoint; limit a function or an HTTPEndpoint")
    dispatch = kind.dispatch

    async def limited(self: Any) -> None:
        if isinstance(self, WebSocketEndpoint):
            connection: HTTPConnection = WebSocket(self.scope, self.receive, self.send)
        else:
            connection = Request(self.scope, self.receive)
        checked = await check_route(limit, connection, connection.scope)
        if remember(checked, connection.scope) and checked.denial is None:
            self.send = _send_remembered(connection.scope, self.send)
        if checked.denial is None or checked.verdict is None:
            if checked.held is None:
                await dispatch(self)
                return
            with checked.held as held:
                self.send = send_and_release(self.send, held)
                await dispatch(self)
        elif isinstance(connection, WebSocket):
            await connection.close(*close_of(checked.verdict))
        else:
            response = await answer_denied(limit, checked.denial, connection, checked.verdict)
            await response(self.scope, self.receive, self.send)

    kind.dispatch = limited  # type: ignore[method-assign]
    return kind


def _send_remembered(scope: Scope, send: Send) -> Send:
    """`send` that adds the header lines of this limit and of those on methods where the response begins."""

    def adding(message: Message) -> Awaitable[None]:
        fields = remembered(scope) if message["type"] in BEGINS_RESPONSE else []
        return (send_with(fields, send) if fields else send)(message)

    return adding


def _connection(args: tuple[Any, ...], kwargs: dict[str, Any]) -> HTTPConnection:
    """The request stands first, or behind `self`."""
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, HTTPConnection):
            return argument
    raise ConfigError("there is no request; @rate_limit stands on a function that gets one")
