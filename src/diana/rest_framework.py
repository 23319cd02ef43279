"""Throttle classes for Django REST framework: `throttle_classes = [rate_limit("10/minute")]`.

REST framework calls every throttle of a view, also those behind one that has denied the request, and then answers by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from django.conf import settings
from django.http import HttpRequest
from django.urls import URLPattern, URLResolver, get_resolver, get_urlconf
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from diana.core.errors import ConfigError
from diana.core.verdict import Verdict
from diana.django.middleware import LISTS
from diana.django.views import check_request, has_middleware, look_at_request
from diana.responses.denial_response import Fields
from diana.responses.ratelimit_headers import seconds_to_retry
from diana.web.identity_callbacks import Finder
from diana.web.route_headers import combined
from diana.web.route_limit import RouteLimit, refuse_options, refuse_places
from diana.web.view_limits import ViewLimits, cut, name_of_view
from diana.wsgi import lines_from_fields

__all__ = ["RateLimitThrottle", "rate_limit"]


WRITTEN_BY_REST_FRAMEWORK = (b"content-type", b"content-length", b"retry-after")
"""From what its renderer makes, and from what `wait` returns: the longest of all throttles."""
LIMIT_THE_VIEW = "limit the view with diana.django's rate_limit"
LONGEST_CLASS_NAME = 30


class RateLimitThrottle(BaseThrottle):  # type: ignore[misc]  # it comes without types
    """A throttle of your own: `class Logins(RateLimitThrottle): rate = "5/minute"`.

    REST framework answers a denied request, with 429; the header lines are Diana's. Each view counts by itself, unless `name` says
    that all of that name count together. `actor` may be a function of REST framework's request, whose `user` is authenticated.
    """

    rate: ClassVar[str] = ""
    actor: ClassVar[Any] = "ip"
    """Spelled as in a rules file, or a function of the request, written as a staticmethod."""
    name: ClassVar[str | None] = None
    options: ClassVar[dict[str, Any]] = {}
    _limits: ClassVar[ViewLimits[RouteLimit] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._limits = cls._made() if cls.rate else None

    @classmethod
    def _made(cls) -> ViewLimits[RouteLimit]:
        actor: Any = cls.__dict__.get("actor", cls.actor)
        actor = actor.__func__ if isinstance(actor, staticmethod) else actor
        refuse_options(
            cls.options,
            ("status", "body", "denied"),
            f"REST framework answers a throttled request; write an EXCEPTION_HANDLER, or {LIMIT_THE_VIEW}",
        )
        refuse_options(cls.options, ("actor", "name"), "write it as an attribute of the class")
        options = {**cls.options, "actor": actor, "name": cls.name}
        limits = ViewLimits(RouteLimit, cls.rate, options)
        refuse_places(
            RouteLimit(cls.rate, **{**options, "store": None}),
            f"{LIMIT_THE_VIEW}, or write a rule with algo: C",
        )
        return limits

    def allow_request(self, request: Request, view: Any) -> bool:
        cls = type(self)
        if cls._limits is None:
            raise ConfigError(f'{cls.__name__} has no rate; write rate = "10/minute"')
        asked = request._request
        throttling = _Throttling.of(asked, view)
        limit = cls._limits.under(throttling.counter(cls))
        if limit.sees_status and limit.enabled and not has_middleware(asked):
            raise ConfigError(
                "charge_on= of a throttle needs the status of the response, which only the middleware sees; "
                f"add diana.django.RateLimitMiddleware to MIDDLEWARE, or {LIMIT_THE_VIEW}"
            )
        if throttling.is_denied:  # all or nothing: behind a denial nothing is charged
            checked = look_at_request(limit, asked, request)
        else:
            checked = check_request(limit, asked, request)
        self._seconds = None if checked.verdict is None else _seconds_to_retry(checked.verdict)
        if checked.denial is not None:
            throttling.deny(checked.denial.headers)
            if checked.verdict is not None and checked.verdict.listed is not None:
                raise PermissionDenied  # 403: a throttled request is answered with 429
        elif not throttling.is_denied:
            throttling.allow(checked.fields)
        return checked.denial is None

    def wait(self) -> float | None:
        return self._seconds


class _Throttling:
    """What the throttles of one view say to one request."""

    KEPT_AS = "_diana_throttling"

    def __init__(self, asked: HttpRequest, view: Any) -> None:
        self._asked = asked
        self._view = view
        self._view_name = _name_in_urls(type(view), asked)
        self._alike: Counter[str] = Counter()
        self._told: list[Fields] = []
        self._own: dict[str, str] = dict(view.headers)
        self._written: list[str] = []
        self.is_denied = False

    @classmethod
    def of(cls, asked: HttpRequest, view: Any) -> _Throttling:
        found = getattr(view, cls.KEPT_AS, None)
        if found is None or found._asked is not asked:
            found = cls(asked, view)
            setattr(view, cls.KEPT_AS, found)
        made: _Throttling = found
        return made

    def counter(self, throttle: type[RateLimitThrottle]) -> str:
        """Throttles of one name on one view are numbered, as the decorators are."""
        name = f"{self._view_name} {cut(throttle.__qualname__, LONGEST_CLASS_NAME)}"
        self._alike[name] += 1
        return name if self._alike[name] == 1 else f"{name} {self._alike[name]}"

    def allow(self, fields: Fields) -> None:
        self._told.append(fields)
        self._write()

    def deny(self, fields: Fields) -> None:
        if not self.is_denied:
            self._told.clear()  # what was charged before is refunded
        self.is_denied = True
        self._told.append(fields)
        self._write()

    def _write(self) -> None:
        headers = self._view.headers
        for name in self._written:
            headers.pop(name, None)
        lines: dict[str, str] = {}
        told = combined(self._told)
        fields = [field for field in told if field[0] not in WRITTEN_BY_REST_FRAMEWORK]
        for name, value in lines_from_fields(fields):
            own = lines.get(name) or self._own.get(name)
            lines[name] = f"{own}, {value}" if own and name in LISTS else value
        headers.update(lines)
        self._written = list(lines)


def rate_limit(
    rate: str,
    *,
    actor: str | Sequence[str] | Finder = "ip",
    name: str | None = None,
    **options: Any,
) -> type[RateLimitThrottle]:
    """A throttle class: `throttle_classes = [rate_limit("5/minute", actor="account")]`."""
    own = staticmethod(actor) if callable(actor) else actor
    fields = {"rate": rate, "actor": own, "name": name, "options": options, "__module__": __name__}
    by = f" by {actor.__name__}" if callable(actor) and hasattr(actor, "__name__") else ""
    return type(f"RateLimit {rate}{by}", (RateLimitThrottle,), fields)


def _seconds_to_retry(verdict: Verdict) -> int | None:
    decisions = [verdict.decisions[place] for place in verdict.match.enforced]
    return seconds_to_retry([decision for decision in decisions if not decision])


def _name_in_urls(kind: type, asked: HttpRequest) -> str:
    """Views of one name, as a function makes them, are numbered in the order of the URLs: it is the same in every process."""
    name = name_of_view(kind)
    urlconf = getattr(asked, "urlconf", None) or get_urlconf() or settings.ROOT_URLCONF
    alike = _views_in_urls(urlconf).get(name, [])
    number = alike.index(kind) + 1 if kind in alike else 1
    return f"{name} #{number}" if number > 1 else name


@lru_cache(8)
def _views_in_urls(urlconf: Any) -> dict[str, list[type]]:
    found: dict[str, list[type]] = {}
    waiting: list[URLPattern | URLResolver] = list(reversed(get_resolver(urlconf).url_patterns))
    while waiting:
        pattern = waiting.pop()
        if isinstance(pattern, URLResolver):
            waiting += reversed(pattern.url_patterns)
            continue
        kind = getattr(pattern.callback, "cls", None)
        if isinstance(kind, type):
            alike = found.setdefault(name_of_view(kind), [])
            if kind not in alike:
                alike.append(kind)
    return found
