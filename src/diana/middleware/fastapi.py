"""A limit on a route, as a dependency: `Depends(RateLimit("10/minute"))`.

FastAPI reads and validates the body before it runs dependencies: `fastapi_route.py` runs these limits before.

Several on one route are all or nothing: what earlier ones charged is given back when a later one denies. They need no rules file
and no middleware; they get along with both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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
from starlette.requests import HTTPConnection

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.duration import spelling_from_micros
from diana.core.errors import ConfigError
from diana.core.limit import limits_from_spelling
from diana.core.policy import Policy
from diana.core.verdict import Verdict
from diana.guard import AsyncGuard
from diana.middleware.answer import Answers, Denial, Fields, detail_of
from diana.middleware.asgi import SINGLE, TRY_AGAIN_LATER, ScopeRequest
from diana.middleware.by_request import RequestFunctions
from diana.middleware.delay import WAITING, deny_instead
from diana.middleware.identity import Finder, afind
from diana.middleware.wsgi import lines_from_fields
from diana.sources.rules import rules_from_bytes
from diana.waiting import Timer

CHARGED = "diana.charged"
"""In the scope: what this request was charged by earlier limits of its route."""
ENFORCED = "diana.enforced"
"""In the scope: what limits that ran before the body was read say, by limit."""
FOUND = "diana.found"
"""In the scope: what functions of the request said of it, for the limit that is being asked."""
ANY_LIMIT = "1/minute"
"""Where a function says it: only its place is taken."""
EXEMPT = "__diana_exempt__"

F = TypeVar("F", bound=Callable[..., Any])


class RateLimitExceeded(HTTPException):
    """Over the limit. FastAPI answers it as any HTTPException, with a `detail`; `answer` says more."""

    def __init__(self, denial: Denial, verdict: Verdict) -> None:
        headers = dict(lines_from_fields(denial.headers))
        headers.pop("Content-Length", None)
        # A problem (RFC 9457) may consist of its detail alone.
        headers["Content-Type"] = "application/problem+json"
        retry = headers.get("Retry-After")
        said = detail_of(None if retry is None else int(retry))
        super().__init__(denial.status, said, headers)
        self.denial = denial
        self.verdict = verdict


class RateLimit:
    """`@app.get("/", dependencies=[Depends(RateLimit("10/minute"))])`.

    `actor` is spelled as in a rules file (`ip`, `header X-Api-Key`, a list of them), or a function of the request, plain or async. One
    RateLimit is one count, however many routes use it. `limit`, `allow` (true: left alone) and `cost` may be functions of the request
    too.
    """

    def __init__(
        self,
        limit: str | Callable[[Any], Any],
        *,
        actor: str | Sequence[str] | Finder = "ip",
        allow: Callable[[Any], Any] | None = None,
        status: int = 429,
        body: str | None = None,
        headers: Sequence[str] = ("ietf", "retry-after"),
        algo: str = "TB",
        cost: int | Callable[[Any], Any] = 1,
        missing: str = "ip",
        trusted_proxies: Sequence[str] = (),
        store: str | Store | Client | None = None,
        name: str | None = None,
        clock: Clock | None = None,
        observers: Sequence[str | Observer] = (),
        **algorithm_options: Any,
    ) -> None:
        if store is not None and name is None:
            raise ConfigError("others count in this store too; give the limit a name=")
        if "charge_on" in algorithm_options:
            raise ConfigError(
                "a dependency does not see the answer's status; write charge_on in a rules file, for the middleware"
            )
        if callable(limit) and name is None:
            raise ConfigError(
                "a limit that is a function has no spelling of its own; give it a name="
            )
        self._functions = RequestFunctions(limit=limit, allow=allow, cost=cost)
        self._finder = actor if callable(actor) else None
        spelled = "account" if callable(actor) else actor
        rule = {
            "actor": spelled if isinstance(spelled, str) else list(spelled),
            "algo": algo,
            "cost": 1 if callable(cost) else cost,
            "missing": missing,
            "scope": "local" if store is None else "global",
            **algorithm_options,
        }
        response: dict[str, Any] = {"status": status, "headers": list(headers)}
        if body is not None:
            response["body"] = body
        spelling = ANY_LIMIT if callable(limit) else limit
        policy = _policy(spelling, name, rule, response, trusted_proxies)
        if self._functions:
            policy = self._functions.policy(policy, lambda request: request.scope[FOUND])
        self.guard = AsyncGuard(policy, store, clock=clock, observers=observers)
        self._answers = Answers(policy)
        self._timer = Timer(clock)

    @property
    def needs_only_the_request(self) -> bool:
        """Its actor is spelled: it looks at nothing that an earlier dependency found."""
        return self._finder is None

    async def __call__(self, connection: HTTPConnection, response: Response) -> Fields:
        early: dict[RateLimit, Fields] = connection.scope.get(ENFORCED, {})
        fields = early[self] if self in early else await self.enforce(connection)
        _add(fields, response)
        return fields

    async def enforce(self, connection: HTTPConnection) -> Fields:
        """Charge the request, or raise RateLimitExceeded; the header lines of its answer."""
        if getattr(connection.scope.get("endpoint"), EXEMPT, False):
            return []
        request = ScopeRequest(connection.scope)
        if self._finder is not None:
            request.identities = {"account": await afind(self._finder, _request_of(connection))}
        if self._functions:
            connection.scope[FOUND] = await self._functions.afind(_request_of(connection))
        verdict = await self.guard.check(request)
        charged: list[tuple[AsyncGuard, Verdict]] = connection.scope.setdefault(CHARGED, [])
        if verdict.delay and WAITING.is_full:
            await self.guard.refund(verdict)
            verdict = deny_instead(verdict)
        if not verdict.allowed:
            while charged:
                guard, earlier = charged.pop()
                await guard.refund(earlier)
            raise self._denied(connection, verdict)
        charged.append((self.guard, verdict))
        if verdict.delay:
            await self._delay(verdict)
        return self._answers.fields(verdict)

    def _denied(self, connection: HTTPConnection, verdict: Verdict) -> Exception:
        denial = self._answers.denial(verdict)
        if connection.scope["type"] == "websocket":
            return WebSocketException(TRY_AGAIN_LATER, "Too many requests")
        return RateLimitExceeded(denial, verdict)

    async def _delay(self, verdict: Verdict) -> None:
        try:
            with WAITING.place():
                await self._timer.asleep(verdict.delay)
        except BaseException:
            await self.guard.refund(verdict)
            raise


async def answer(request: Request, error: Exception) -> Response:
    """Diana's own answer: `app.add_exception_handler(RateLimitExceeded, answer)`."""
    assert isinstance(error, RateLimitExceeded)  # noqa: S101  # it is registered for nothing else
    status, fields, body = error.denial
    response = Response(b"" if request.method == "HEAD" else body, status)
    response.raw_headers = fields
    return response


def limited(limit: str | RateLimit, **options: Any) -> Callable[[F], F]:
    """A limit as a decorator, under the route's own: `@limited("10/minute")`.

    As the dependency, and it also adds header lines to a Response that the route itself makes.
    """
    rate_limit = limit if isinstance(limit, RateLimit) else RateLimit(limit, **options)

    def decorate(endpoint: F) -> F:
        if isgeneratorfunction(endpoint) or isasyncgenfunction(endpoint):
            raise ConfigError(
                "a route that yields takes its limit as a dependency; write dependencies=[Depends(RateLimit(…))]"
            )
        name, read = _with_dependency(endpoint, rate_limit)
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
        return cast("F", limited_endpoint)

    return decorate


def exempt(endpoint: F) -> F:
    """Leave this route alone, whatever its router limits; under the route's own decorator."""
    setattr(endpoint, EXEMPT, True)
    return endpoint


def _policy(
    spelling: str,
    name: str | None,
    rule: dict[str, Any],
    response: dict[str, Any],
    trusted_proxies: Sequence[str],
) -> Policy:
    """A rules file of one block, with all that a file is checked for."""
    limits = limits_from_spelling(spelling)
    actor = rule["actor"] if isinstance(rule["actor"], str) else " + ".join(rule["actor"])
    rules = []
    for limit in limits:
        unit = spelling_from_micros(limit.unit_us)
        own = f"{limit} by {actor}" if name is None else name
        if name is not None and len(limits) > 1:
            own = f"{name} {unit}"
        rules.append({**rule, "name": own, "rpu": limit.rpu, "unit": unit})
    document: dict[str, Any] = {"response": response, "limits": [{"url": "/", "rules": rules}]}
    if trusted_proxies:
        document["identity"] = {"trusted_proxies": list(trusted_proxies)}
    return rules_from_bytes(json.dumps(document).encode(), "RateLimit")


def _request_of(connection: HTTPConnection) -> HTTPConnection:
    """What identity functions expect: a Request, or the WebSocket's connection."""
    return Request(connection.scope) if connection.scope["type"] == "http" else connection


def _add(fields: Fields, response: Response) -> None:
    single = any(name.startswith(SINGLE) for name, _ in response.raw_headers)
    response.raw_headers += [
        field for field in fields if not (single and field[0].startswith(SINGLE))
    ]


def _with_fields(returned: Any, fields: Fields) -> Any:
    if isinstance(returned, Response):
        _add(fields, returned)
    return returned


def _with_dependency(endpoint: Callable[..., Any], rate_limit: RateLimit) -> tuple[str, Signature]:
    """FastAPI reads the signature; this one has one parameter more."""
    read = signature(endpoint, eval_str=True)
    own = list(read.parameters.values())
    name = f"diana_{len(own)}"  # another one for each decorator
    annotation = Annotated[Any, Depends(rate_limit)]
    own.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation))
    return name, read.replace(parameters=own)
