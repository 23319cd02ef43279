"""Limits on routes of ASGI frameworks: what those of Starlette, FastAPI and Litestar share."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from diana.core.errors import ConfigError
from diana.core.verdict import Verdict
from diana.middleware.admission import ADMISSION, Admission
from diana.middleware.asgi_request import ScopeRequest
from diana.middleware.at_hand import MIDDLEWARE, SCOPE_VERDICT, Denied
from diana.middleware.route import Checked, RouteLimit

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
