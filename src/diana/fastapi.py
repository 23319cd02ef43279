"""Limits on FastAPI's routes: `Depends(RateLimit("10/minute"))`, `@rate_limit` and `LimitedRoute`.

They need no rules file and no middleware, and work together with both. Several on one route are all or nothing: if a later one denies,
what earlier ones charged is refunded.

FastAPI reads, parses and validates the body of a request before it runs dependencies: a request that a `RateLimit` denies has cost its body
by then, and one whose body is not valid is never counted. `APIRouter(route_class=LimitedRoute)` runs the limits before the body is read.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import wraps
from inspect import (
    Parameter,
    Signature,
    isasyncgenfunction,
    iscoroutinefunction,
    isgeneratorfunction,
    signature,
)
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, HTTPException, Request, Response, WebSocketException
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from diana.asgi import RateLimitMiddleware, close_of
from diana.core.errors import ConfigError
from diana.core.verdict import Verdict
from diana.responses.denial_response import (
    DenialResponse,
    Fields,
    detail_of,
    seconds_without_header,
)
from diana.starlette import add_fields, check_route, denied_of, keep_response, response_from_denial
from diana.web.admission import Denied
from diana.web.route_headers import combined
from diana.web.route_limit import RouteLimit
from diana.web.view_limits import ViewLimits, marked
from diana.wsgi import lines_from_fields

__all__ = [
    "LimitedRoute",
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitMiddleware",
    "exempt",
    "rate_limit",
    "rate_limit_exceeded_handler",
]


ENFORCED = "diana.enforced"
"""In the scope: what limits that ran before the body was read say, by limit."""
TOLD = "diana.fastapi.fields"
"""In the scope: the header lines of each dependency so far."""
EXEMPT = "__diana_exempt__"
ENDS = ("fastapi_inner_astack", "fastapi_middleware_astack")
"""In the scope: what is called when the answer has been sent; the second in older versions."""

F = TypeVar("F", bound=Callable[..., Any])


class RateLimitExceeded(HTTPException):
    """Over the limit. FastAPI answers it as any HTTPException, with a `detail`; `rate_limit_exceeded_handler` answers in full."""

    def __init__(
        self, denial: DenialResponse, verdict: Verdict, denied: Denied | None = None
    ) -> None:
        headers = dict(lines_from_fields(denial.headers))
        headers.pop("Content-Length", None)
        # A problem (RFC 9457) may consist of its detail alone.
        headers["Content-Type"] = "application/problem+json"
        retry = headers.get("Retry-After")
        said = detail_of(seconds_without_header(verdict) if retry is None else int(retry))
        super().__init__(denial.status, said, headers)
        self.denial = denial
        self.verdict = verdict
        self.denied = denied


class _AnsweredByApp(RateLimitExceeded):
    """A `denied`, of the limit or of the middleware, or a body of the limit answers, without any handler of the app's."""


class RateLimit(RouteLimit):
    """`@app.get("/", dependencies=[Depends(RateLimit("10/minute"))])`.

    `actor` is spelled as in a rules file (`ip`, `header X-Api-Key`, a list of them), or a function of the request, plain or async. One
    RateLimit is one count, however many routes use it. `limit`, `allow` (true: left alone) and `cost` may be functions of the request
    too.
    """

    @property
    def dependency(self) -> None:
        """FastAPI looks for it where a Depends belongs."""
        raise ConfigError(
            f"dependencies= must be a list of Depends (got {type(self).__name__}); "
            'write dependencies=[Depends(RateLimit("10/minute"))]'
        )

    @property
    def needs_only_the_request(self) -> bool:
        """Its actor is spelled: it looks at nothing that an earlier dependency found."""
        return self.finder is None

    async def __call__(self, connection: HTTPConnection, response: Response) -> Fields:
        early: dict[RateLimit, Fields] = connection.scope.get(ENFORCED, {})
        fields = early[self] if self in early else await self.enforce(connection)
        told: list[Fields] = connection.scope.setdefault(TOLD, [])
        if told:  # of several limits, the numbers of the tightest one
            before = combined(told)
            response.raw_headers[:] = [line for line in response.raw_headers if line not in before]
        told.append(fields)
        add_fields(combined(told), response)
        return fields

    async def enforce(self, connection: HTTPConnection) -> Fields:
        """Charge the request, or raise RateLimitExceeded; the header lines of its answer."""
        scope = connection.scope
        if getattr(scope.get("endpoint"), EXEMPT, False):
            return []
        verdict, denial, fields, held = await check_route(self, connection, scope)
        if held is not None:
            _ends_of(scope).callback(held.release)
        if verdict is None or denial is None:
            return fields
        if scope["type"] == "websocket":
            raise WebSocketException(*close_of(verdict))
        keep_response(scope)
        denied = denied_of(self, scope)
        # Where Starlette looks for handlers of this request.
        handlers: dict[Any, Any] = (scope.get("starlette.exception_handlers") or [{}])[0]
        has_own = self.denied is not None or self.has_body
        if has_own or (denied is not None and RateLimitExceeded not in handlers):
            handlers.setdefault(_AnsweredByApp, rate_limit_exceeded_handler)
            raise _AnsweredByApp(denial, verdict, denied)
        raise RateLimitExceeded(denial, verdict, denied)


# FastAPI reads them to know what to hand over, and before 0.121 does not find the names of strings on an object.
RateLimit.__call__.__annotations__.update(connection=HTTPConnection, response=Response)


async def rate_limit_exceeded_handler(request: Request, error: Exception) -> Response:
    """Diana's own answer: `app.add_exception_handler(RateLimitExceeded, rate_limit_exceeded_handler)`."""
    assert isinstance(error, RateLimitExceeded)  # noqa: S101  # it is registered for nothing else
    return await response_from_denial(error.denial, error.denied, request, error.verdict)


def rate_limit(limit: str | RateLimit, **options: Any) -> Callable[[F], F]:
    """A limit as a decorator, under the route's own: `@rate_limit("10/minute")`.

    As the dependency, and it also adds header lines to a Response that the route itself makes. A RateLimit is one count for all routes
    that it stands on; else each route counts by itself.
    """
    limits = None if isinstance(limit, RateLimit) else ViewLimits(RateLimit, limit, options)

    def decorate(endpoint: F) -> F:
        if isgeneratorfunction(endpoint) or isasyncgenfunction(endpoint):
            raise ConfigError(
                "a route that yields takes its limit as a dependency; write dependencies=[Depends(RateLimit(…))]"
            )
        own = limit if isinstance(limit, RateLimit) else cast("Any", limits).of(endpoint)
        name, read = _with_dependency(endpoint, own)
        if iscoroutinefunction(endpoint):

            @wraps(endpoint)
            async def limited_endpoint(*args: Any, **kwargs: Any) -> Any:
                fields = kwargs.pop(name)
                return _with_fields(await endpoint(*args, **kwargs), fields)
        else:

            @wraps(endpoint)
            def limited_endpoint(*args: Any, **kwargs: Any) -> Any:
                fields = kwargs.pop(name)
                return _with_fields(endpoint(*args, **kwargs), fields)

        limited_endpoint.__signature__ = read  # type: ignore[attr-defined]
        return cast("F", marked(limited_endpoint))

    return decorate


"""The same under its older name."""


def exempt(endpoint: F) -> F:
    """Leave this route alone, whatever its router limits; under the route's own decorator."""
    setattr(endpoint, EXEMPT, True)
    return endpoint


def _ends_of(scope: Any) -> AsyncExitStack:
    """What FastAPI does when the answer has been sent."""
    for name in ENDS:
        stack = scope.get(name)
        if isinstance(stack, AsyncExitStack):
            return stack
    raise ConfigError(
        "so many at once on a route needs FastAPI 0.118 or later, which tells when an answer has been sent"
    )


def _with_fields(returned: Any, fields: Fields) -> Any:
    if isinstance(returned, Response):
        add_fields(fields, returned)
    return returned


def _with_dependency(endpoint: Callable[..., Any], rate_limit: RateLimit) -> tuple[str, Signature]:
    """FastAPI reads the signature; this one has one parameter more."""
    read = signature(endpoint, eval_str=True)
    own = list(read.parameters.values())
    name = f"diana_{len(own)}"  # another one for each decorator
    annotation = Annotated[Any, Depends(rate_limit)]
    own.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation))
    return name, read.replace(parameters=own)


class LimitedRoute(APIRoute):
    """A route whose limits run before its body is read.

    Those on the route and on its own router: `dependencies=[Depends(RateLimit(…))]` and `@rate_limit(…)`. A limit whose `actor` is a
    function stays where it is, if it stands behind other dependencies: it may count by what they find.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        limits = self._early_limits()
        if not limits:
            return handle

        async def limit_and_handle(request: Request) -> Response:
            overridden = getattr(request.app, "dependency_overrides", {})
            enforced: dict[RateLimit, Fields] = request.scope.setdefault(ENFORCED, {})
            for limit in limits:
                if limit not in overridden and limit not in enforced:
                    enforced[limit] = await limit.enforce(request)
            return await handle(request)

        return limit_and_handle

    def _early_limits(self) -> list[RateLimit]:
        early: list[RateLimit] = []
        others_before = False
        for dependency in self.dependant.dependencies:
            if isinstance(dependency.call, RateLimit):
                if dependency.call.needs_only_the_request or not others_before:
                    early.append(dependency.call)
            else:
                others_before = True
        return early
