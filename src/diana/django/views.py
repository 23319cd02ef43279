"""A limit on views of Django: `@rate_limit("10/minute")` on functions, on class-based views and on their methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError
from django.views import View

from diana.core.errors import ConfigError
from diana.core.policy import Policy
from diana.django.middleware import (
    add_fields,
    awaited,
    called,
    environ_request,
    imported_setting,
    join_scope,
    observers_setting,
    refusal,
    setting,
)
from diana.django.slots_of_request import release_with_request
from diana.guard import Guard
from diana.web.admission import MIDDLEWARE, VERDICT
from diana.web.identity_callbacks import Finders
from diana.web.request_charges import admission_of
from diana.web.route_headers import remember, remembered
from diana.web.route_limit import Checked, RouteLimit
from diana.web.view_limits import ViewLimits, marked

T = TypeVar("T")

STATUS_OF_ERROR: dict[type[Exception], int] = {
    Http404: 404, PermissionDenied: 403, MultiPartParserError: 400, BadRequest: 400, SuspiciousOperation: 400,
}  # fmt: skip


def rate_limit(limit: str, **options: Any) -> Callable[[T], T]:
    """Limit a view: `@rate_limit("5/minute", actor="account")`.

    On a function, plain or async, on a class-based view (all its methods together) or one of its methods; by `method_decorator`, too.
    `actor` may be a function of the HttpRequest. A denied call is answered here.
    """
    limits = ViewLimits(RouteLimit, limit, options)

    def decorate(view: T) -> T:
        route_limit = limits.of(view)
        if isinstance(view, type):
            if not issubclass(view, View):
                raise ConfigError(f"{view.__name__} is no View; limit a function or a View")
            kind: Any = view
            kind.dispatch = _limited(kind.dispatch, route_limit, kind.view_is_async)
            return view
        if not callable(view):
            raise ConfigError(f"{view!r} is no view; limit a function or a class of views")
        return cast("T", marked(_limited(view, route_limit, iscoroutinefunction(view))))

    return decorate


def _limited(view: Callable[..., Any], limit: RouteLimit, is_async: bool) -> Callable[..., Any]:
    if is_async:

        @wraps(view)
        async def alimited(*args: Any, **kwargs: Any) -> Any:
            asked = _asked(args)
            checked = await acheck_request(limit, asked)
            is_outermost = remember(checked, asked.META)
            if checked.denial is not None:
                own = awaited(_denied(limit, asked))
                answer = None if own is None else await own(asked, checked.verdict)
                return refusal(checked.denial, asked, answer)
            try:
                response = await view(*args, **kwargs)
            except BaseException as error:
                _release(checked)
                if is_outermost and isinstance(error, Exception):
                    await _asettle(asked, status_of_error(error))
                raise
            if checked.held is not None:
                release_with_request(asked, response, checked.held)
            if not is_outermost:
                return response
            await _asettle(asked, response.status_code)
            return add_fields(remembered(asked.META), response)

        return alimited

    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        asked = _asked(args)
        checked = check_request(limit, asked)
        is_outermost = remember(checked, asked.META)
        if checked.denial is not None:
            own = called(_denied(limit, asked))
            answer = None if own is None else own(asked, checked.verdict)
            return refusal(checked.denial, asked, answer)
        try:
            response = view(*args, **kwargs)
        except BaseException as error:
            _release(checked)
            if is_outermost and isinstance(error, Exception):
                _settle(asked, status_of_error(error))
            raise
        if checked.held is not None:
            release_with_request(asked, response, checked.held)
        if not is_outermost:
            return response
        _settle(asked, response.status_code)
        return add_fields(remembered(asked.META), response)

    return limited


def _release(checked: Checked) -> None:
    if checked.held is not None:
        checked.held.release()


def _denied(limit: RouteLimit, asked: HttpRequest) -> Any:
    """What answers a denied request: the limit's own `denied`, or DIANA_DENIED unless the limit has words of its own."""
    if limit.denied is not None or limit.has_body:
        return limit.denied
    denied = imported_setting("DENIED")
    if denied is not None:
        admission_of(asked.META).route_denial = None  # a middleware has nothing left to answer
    return denied


def _settle(asked: HttpRequest, status: int) -> None:
    """Without a middleware that sees the response, the view's own status is the last one that is known."""
    if not has_middleware(asked):
        admission_of(asked.META).settle(status)


async def _asettle(asked: HttpRequest, status: int) -> None:
    if not has_middleware(asked):
        await admission_of(asked.META).asettle(status)


def has_middleware(asked: HttpRequest) -> bool:
    """Whether one of Diana's stands around this view: it sees the response that leaves."""
    _stand_in(asked)
    return not isinstance(asked.META[MIDDLEWARE], SettingsGuard)


def status_of_error(error: Exception) -> int:
    """As Django answers what a view raises."""
    for kind, status in STATUS_OF_ERROR.items():
        if isinstance(error, kind):
            return status
    return 500


def check_request(limit: RouteLimit, asked: HttpRequest, subject: Any = None) -> Checked:
    """Charge the request; `request.diana` is the verdict. A limit's own `actor` may look at another request around Django's."""
    return _checked(limit, limit.check, asked, subject)


def look_at_request(limit: RouteLimit, asked: HttpRequest, subject: Any = None) -> Checked:
    """What `check_request` would say; nothing is charged."""
    return _checked(limit, limit.look, asked, subject)


def _checked(
    limit: RouteLimit, check: Callable[..., Checked], asked: HttpRequest, subject: Any
) -> Checked:
    _stand_in(asked)
    finders = _finders(limit, asked, called)
    checked = check(environ_request(asked), subject or asked, asked.META, finders)
    _keep_verdict(asked)
    return checked


async def acheck_request(limit: RouteLimit, asked: HttpRequest) -> Checked:
    _stand_in(asked)
    finders = _finders(limit, asked, awaited)
    checked = await limit.acheck(environ_request(asked), asked, asked.META, finders)
    _keep_verdict(asked)
    return checked


def _keep_verdict(asked: HttpRequest) -> None:
    asked.diana = asked.META.pop(VERDICT, getattr(asked, "diana", None))


class SettingsGuard:
    """Where routes count if the middleware is not installed: as the settings that begin with `DIANA_` say."""

    def __init__(
        self, enabled: bool, store: Any, local: Any, clock: Any, observers: tuple[Any, ...]
    ) -> None:
        self.enabled = enabled
        where = store or local or "memory://"
        self.guard = Guard(Policy([]), where, local_store=local, clock=clock, observers=observers)


_settings_guard = lru_cache(8)(SettingsGuard)


def _stand_in(asked: HttpRequest) -> None:
    join_scope(asked)
    if MIDDLEWARE not in asked.META:
        observers = tuple(observers_setting())
        enabled = setting("ENABLED") is not False
        asked.META[MIDDLEWARE] = _settings_guard(
            enabled, setting("STORE"), setting("LOCAL_STORE"), setting("CLOCK"), observers
        )


def _finders(limit: RouteLimit, asked: HttpRequest, adapted: Callable[[Any], Any]) -> Any:
    """`DIANA_ACCOUNT` and `DIANA_DEVICE`, which get the HttpRequest."""
    if limit.finder is not None:
        return None

    def of_request(name: str) -> Any:
        finder = adapted(imported_setting(name))
        return None if finder is None else lambda _: finder(asked)

    return Finders(of_request("ACCOUNT"), of_request("DEVICE"))


def _asked(args: tuple[Any, ...]) -> HttpRequest:
    """The request stands first, or behind `self`. That of Django REST framework has Django's inside."""
    for argument in args[:2]:
        if isinstance(argument, HttpRequest):
            return argument
        inside = getattr(argument, "_request", None)
        if isinstance(inside, HttpRequest):
            return inside
    raise ConfigError("there is no request; @rate_limit stands on a view")
