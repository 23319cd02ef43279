"""A limit on views of Flask: `@rate_limit("10/minute")` on functions, on a MethodView or its methods, on a whole blueprint."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from flask import (
    Response,
    after_this_request,
    current_app,
    make_response,
    request,
    request_finished,
    request_tearing_down,
)
from flask.sansio.scaffold import Scaffold
from flask.views import View

from diana.core.errors import ConfigError
from diana.core.verdict import Verdict
from diana.web.admission import MIDDLEWARE, beside_own_words, checked_answer
from diana.web.request_charges import ADMISSION, Admission
from diana.web.route_headers import remember, remembered
from diana.web.route_limit import RouteLimit
from diana.web.view_limits import ViewLimits, marked
from diana.wsgi import EnvironRequest, RateLimitMiddleware, lines_from_fields, lines_to_add

__all__ = ["RateLimitMiddleware", "rate_limit"]


HELD = "diana.held"
"""In the environ: the slots of this request, until there is a response with which to release them."""

T = TypeVar("T")


def rate_limit(limit: str, **options: Any) -> Callable[[T], T]:
    """Limit a view: `@rate_limit("5/minute", actor="header X-Api-Key")`, under `@app.get(…)`.

    On a function, plain or async, on a `MethodView` (all its methods together) or one of its methods, and on a `Blueprint` (all its views
    together): `rate_limit("100/minute")(blueprint)`. `actor` may be a function of Flask's request. A denied call is answered here.
    """
    limits = ViewLimits(RouteLimit, limit, options)

    def decorate(view: T) -> T:
        route_limit = limits.of(view)
        if isinstance(view, Scaffold):
            view.before_request(lambda: _denied_by(route_limit))
            return view
        if isinstance(view, type):
            if not issubclass(view, View):
                raise ConfigError(f"{view.__name__} is no view; limit a function or a MethodView")
            # The decorators of a class stand around each view that is made of it, and it may be made several.
            view.decorators = [*view.decorators, lambda made: _limited(made, route_limit)]
            return cast("T", view)
        if not callable(view):
            raise ConfigError(f"{view!r} is no view; limit a function, a MethodView or a Blueprint")
        return cast("T", marked(_limited(view, route_limit)))

    return decorate


def _limited(view: Callable[..., Any], limit: RouteLimit) -> Callable[..., Any]:
    if iscoroutinefunction(view):

        @wraps(view)
        async def alimited(*args: Any, **kwargs: Any) -> Any:
            denied = _denied_by(limit)
            return await view(*args, **kwargs) if denied is None else denied

        return alimited

    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        denied = _denied_by(limit)
        return current_app.ensure_sync(view)(*args, **kwargs) if denied is None else denied

    return limited


def _denied_by(limit: RouteLimit) -> Response | None:
    """The answer to a denied request; None if it may pass."""
    environ = request.environ
    finders = getattr(environ.get(MIDDLEWARE), "finders", None)
    checked = limit.check(EnvironRequest(environ), request, environ, finders)
    verdict, denial, _, held = checked
    if remember(checked, environ):
        after_this_request(_add_remembered)
    if denial is None:
        if held is not None:
            environ.setdefault(HELD, []).append(held)
        return None
    own = _own_answer(limit, verdict)
    if own is not None:
        response = make_response(own)
        for name, value in lines_from_fields(beside_own_words(denial.headers)):
            response.headers.setdefault(name, value)
        return response
    lines = lines_from_fields(denial.headers)
    return Response(b"" if request.method == "HEAD" else denial.body, denial.status, lines)


def _own_answer(limit: RouteLimit, verdict: Verdict | None) -> Any:
    """Of the limit's own `denied`, or of the middleware's unless the limit has words of its own."""
    if limit.denied is not None:
        return limit.denied(request, verdict)
    denied = getattr(request.environ.get(MIDDLEWARE), "denied", None)
    if denied is None or limit.has_body:
        return None
    return checked_answer(denied(EnvironRequest(request.environ), verdict))


def _add_remembered(response: Response) -> Response:
    for name, value in lines_to_add(remembered(request.environ), response.headers.keys()):
        response.headers.add(name, value)
    return response


@request_finished.connect
def _end_with_response(_: Any, response: Response, **__: Any) -> None:
    """The response that leaves: what the view returned may have been replaced by the app's `after_request`."""
    _settle(response.status_code)
    for held in request.environ.pop(HELD, ()):
        response.call_on_close(held.release)


@request_tearing_down.connect
def _end_without_response(_: Any, exc: BaseException | None = None, **__: Any) -> None:
    """None has left: the view or an `after_request` raised."""
    if isinstance(exc, Exception):
        _settle(500)
    for held in request.environ.pop(HELD, ()):
        held.release()


def _settle(status: int) -> None:
    """A middleware around the app sees the response by itself."""
    admission: Admission | None = request.environ.get(ADMISSION)
    if admission is not None and MIDDLEWARE not in request.environ:
        admission.settle(status)
