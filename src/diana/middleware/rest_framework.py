"""Throttle classes for Django REST framework: `throttle_classes = [rate_limit("10/minute")]`."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from diana.core.errors import ConfigError
from diana.middleware.django_view import check_request
from diana.middleware.identity import Finder
from diana.middleware.route import RouteLimit, refuse_places
from diana.middleware.view import name_of_view
from diana.middleware.wsgi import lines_from_fields

WRITTEN_BY_THE_RENDERER = ("Content-Type", "Content-Length")


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
    _limits: ClassVar[dict[str, RouteLimit]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._limits = {}
        if cls.rate:
            made = cls._made("checked")  # what is wrong is wrong at once
            refuse_places(
                made, "limit the view with diana.django's rate_limit, or write a rule with algo: C"
            )

    @classmethod
    def _made(cls, counter: str) -> RouteLimit:
        if not cls.rate:
            raise ConfigError(f'{cls.__name__} has no rate; write rate = "10/minute"')
        actor: Any = cls.__dict__.get("actor", cls.actor)
        actor = actor.__func__ if isinstance(actor, staticmethod) else actor
        return RouteLimit(cls.rate, actor=actor, name=cls.name, counter=counter, **cls.options)

    def allow_request(self, request: Request, view: Any) -> bool:
        cls = type(self)
        counter = f"{name_of_view(type(view))} {cls.__qualname__[-30:]}"
        limit = cls._limits.get(counter)
        if limit is None:
            limit = cls._limits.setdefault(counter, cls._made(counter))
        asked = request._request
        checked = check_request(limit, asked, request)
        told = checked.fields if checked.denial is None else checked.denial.headers
        for name, value in lines_from_fields(told):
            if name not in WRITTEN_BY_THE_RENDERER:
                own = view.headers.get(name)
                view.headers[name] = f"{own}, {value}" if own else value
        denial = None if checked.verdict is None else checked.verdict.denial
        self._retry_after = denial.retry_after if denial else None
        return checked.denial is None

    def wait(self) -> float | None:
        return None if self._retry_after is None else max(1, ceil(self._retry_after))


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
    return type(f"RateLimit {rate}", (RateLimitThrottle,), fields)
