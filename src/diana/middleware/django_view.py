"""A limit on views of Django: `@rate_limit("10/minute")` on functions, on class-based views and on their methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from django.http import HttpRequest, HttpResponse
from django.views import View

from diana.core.errors import ConfigError
from diana.core.policy import Policy
from diana.guard import Guard
from diana.middleware.at_hand import MIDDLEWARE, VERDICT, beside_own_words
from diana.middleware.django import (
    add_fields,
    awaited,
    called,
    environ_request,
    imported_setting,
    observers_setting,
    setting,
)
from diana.middleware.django_slots import release_with_request
from diana.middleware.identity import Finders
from diana.middleware.route import Checked, RouteLimit
from diana.middleware.told import remember, remembered
from diana.middleware.view import ViewLimits, marked
from diana.middleware.wsgi import lines_from_fields

T = TypeVar("T")


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
                own = awaited(limit.denied)
                return _refusal(asked, checked, own and await own(asked, checked.verdict))
            held = checked.held
            try:
                response = await view(*args, **kwargs)
            except BaseException:
                if held is not None:
                    held.release()
                raise
            if held is not None:
                release_with_request(asked, response, held)
            return add_fields(remembered(asked.META), response) if is_outermost else response

        return alimited

    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        asked = _asked(args)
        checked = check_request(limit, asked)
        is_outermost = remember(checked, asked.META)
        if checked.denial is not None:
            own = called(limit.denied)
            return _refusal(asked, checked, own and own(asked, checked.verdict))
        held = checked.held
        try:
            response = view(*args, **kwargs)
        except BaseException:
            if held is not None:
                held.release()
            raise
        if held is not None:
            release_with_request(asked, response, held)
        return add_fields(remembered(asked.META), response) if is_outermost else response

    return limited


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


def _refusal(asked: HttpRequest, checked: Checked, own: HttpResponse | None) -> HttpResponse:
    denial = checked.denial
    if denial is None:
        raise AssertionError("only denied requests are answered here")
    if own is not None:
        for name, value in lines_from_fields(beside_own_words(denial.headers)):
            own.headers.setdefault(name, value)
        return own
    content = b"" if asked.method == "HEAD" else denial.body
    headers = dict(lines_from_fields(denial.headers))
    return HttpResponse(content, status=denial.status, headers=headers)


def _asked(args: tuple[Any, ...]) -> HttpRequest:
    """The request stands first, or behind `self`. That of Django REST framework has Django's inside."""
    for argument in args[:2]:
        if isinstance(argument, HttpRequest):
            return argument
        inside = getattr(argument, "_request", None)
        if isinstance(inside, HttpRequest):
            return inside
    raise ConfigError("there is no request; @rate_limit stands on a view")
