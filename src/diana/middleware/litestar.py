"""A limit on routes of Litestar, as a guard: `@get("/", guards=[rate_limit("10/minute")])`."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, WebSocketException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard, Message, Scope

from diana.core.verdict import Verdict
from diana.middleware.answer import Denial, detail_of, seconds_without_header
from diana.middleware.asgi import BEGINS_RESPONSE, TRY_AGAIN_LATER, ScopeRequest
from diana.middleware.at_hand import MIDDLEWARE
from diana.middleware.route import RouteLimit, refuse_places
from diana.middleware.view import ViewLimits
from diana.middleware.wsgi import lines_from_fields

FIELDS = "diana.fields"
"""In the scope: header lines for an allowed answer."""


class RateLimitExceeded(HTTPException):
    """Over the limit. Litestar answers it as any HTTPException, with a `detail`."""

    def __init__(self, denial: Denial, verdict: Verdict) -> None:
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
    limits = ViewLimits(RouteLimit, limit, options)
    refuse_places(
        RouteLimit(limit, **{**options, "store": None}),
        "write a rule with algo: C, and put the middleware around the app",
    )

    async def guard(
        connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        scope: Any = connection.scope
        finders = getattr(scope.get(MIDDLEWARE), "finders", None)
        view: Any = handler.fn
        checked = await limits.of(view).acheck(ScopeRequest(scope), connection, scope, finders)
        if checked.denial is None or checked.verdict is None:
            scope.setdefault(FIELDS, []).extend(checked.fields)
        elif scope["type"] == "websocket":
            raise WebSocketException(detail="Too many requests", code=TRY_AGAIN_LATER)
        else:
            raise RateLimitExceeded(checked.denial, checked.verdict)

    return guard


async def add_headers(message: Message, scope: Scope) -> None:
    """`Litestar(…, before_send=[add_headers])`: what is left, in the header lines of allowed answers."""
    said: Any = message
    fields: Any = scope.get(FIELDS)
    if fields and said["type"] in BEGINS_RESPONSE:
        said["headers"] = [*(said.get("headers") or ()), *fields]
