"""A limit on routes of Litestar, as a guard: `@get("/", guards=[rate_limit("10/minute")])`."""

from __future__ import annotations

from typing import Any, cast

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, WebSocketException
from litestar.handlers import BaseRouteHandler
from litestar.routes import HTTPRoute
from litestar.types import Guard, Message, Scope

from diana.asgi import RateLimitMiddleware, close_of
from diana.core.verdict import Verdict
from diana.responses.denial_response import DenialResponse, detail_of, seconds_without_header
from diana.starlette import check_route, keep_response
from diana.web.asgi_send import BEGINS_RESPONSE, not_twice
from diana.web.route_headers import remember, remembered
from diana.web.route_limit import RouteLimit, refuse_options, refuse_places
from diana.web.view_limits import ViewLimits, name_of_view, view_identity
from diana.wsgi import lines_from_fields

__all__ = ["RateLimitExceeded", "RateLimitMiddleware", "add_headers", "rate_limit"]


ADDED = "diana.added"
"""In the message that begins a response: the header lines that were added to it."""
IS_LIMIT = "__diana_is_limit__"
"""On a guard that is a limit."""


class RateLimitExceeded(HTTPException):
    """Over the limit. Litestar answers it as any HTTPException, with a `detail`."""

    def __init__(self, denial: DenialResponse, verdict: Verdict) -> None:
        headers = dict(lines_from_fields(denial.headers))
        headers.pop("Content-Length", None)
        headers.pop("Content-Type", None)
        retry = headers.get("Retry-After")
        said = detail_of(seconds_without_header(verdict) if retry is None else int(retry))
        super().__init__(detail=said, status_code=denial.status, headers=headers)
        self.denial = denial
        self.verdict = verdict


def rate_limit(limit: str, **options: Any) -> Guard:
    """Limit a route, a controller, a router or the app: `guards=[rate_limit("5/minute", actor="header X-Api-Key")]`.

    Each handler counts by itself, unless `name` says that all of that name count together. A denied call is answered by Litestar; for
    header lines in allowed answers write `Litestar(…, before_send=[add_headers])`.
    """
    refuse_options(
        options,
        ("body", "denied"),
        "Litestar answers RateLimitExceeded; write an exception handler for it: its denial is Diana's own response",
    )
    limits = ViewLimits(RouteLimit, limit, options)
    refuse_places(
        RouteLimit(limit, **{**options, "store": None}),
        "write a rule with algo: C, and put the middleware around the app",
    )

    counters: dict[Any, str] = {}

    async def guard(
        connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        scope: Any = connection.scope
        view = (connection.app, view_identity(handler.fn))
        counter = counters.get(view)
        if counter is None:
            counter = counters[view] = _counter(guard, connection.app, handler)
        own = limits.under(counter)
        checked = await check_route(own, connection, scope)
        remember(checked, scope)
        if checked.denial is None or checked.verdict is None:
            return
        if scope["type"] == "websocket":
            close = close_of(checked.verdict)
            raise WebSocketException(detail=close.reason, code=close.code)
        if RateLimitExceeded in handler.resolve_exception_handlers():
            keep_response(scope)
        raise RateLimitExceeded(checked.denial, checked.verdict)

    setattr(guard, IS_LIMIT, True)
    return guard


async def add_headers(message: Message, scope: Scope) -> None:
    """`Litestar(…, before_send=[add_headers])`: what is left, in the header lines of allowed answers."""
    said: Any = message
    if said["type"] not in BEGINS_RESPONSE:
        return
    own = list(said.get("headers") or ())
    # A response cache keeps the message as it is changed here, and sends it again to other clients.
    for name, value in said.pop(ADDED, ()):
        line = next((one for one in own if one[0] == name and one[1] == value), None)
        if line is not None:
            own.remove(line)
    fields = not_twice(remembered(cast("dict[str, Any]", scope)), own)
    if fields and getattr(scope.get("route_handler"), "cache", False):
        said[ADDED] = fields
    said["headers"] = [*own, *fields]


def _counter(guard: Any, app: Litestar, handler: BaseRouteHandler) -> str:
    """The handler's name. Handlers of one name are numbered in the order of their paths, and so are the limits of one handler: it is
    the same in every process, whichever is called first."""
    name = name_of_view(handler.fn)
    alike = _handlers_of_name(app, name)
    number = alike.index(view_identity(handler.fn)) + 1
    if number > 1:
        name = f"{name} #{number}"
    limits = [one for one in handler.resolve_guards() if hasattr(one, IS_LIMIT)]
    place = limits.index(guard) + 1
    return f"{name} {place}" if place > 1 else name


def _handlers_of_name(app: Litestar, name: str) -> list[Any]:
    found: list[Any] = []
    for route in sorted(app.routes, key=lambda route: route.path):
        own = route.route_handlers if isinstance(route, HTTPRoute) else [route.route_handler]
        for handler in sorted(own, key=_methods):
            identity = view_identity(handler.fn)
            if name_of_view(handler.fn) == name and identity not in found:
                found.append(identity)
    return found


def _methods(handler: Any) -> list[str]:
    return sorted(getattr(handler, "http_methods", ()))
