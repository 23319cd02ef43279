"""A Django site for tests: who is logged in, and what the request looked like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path, re_path

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="for tests only",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"],
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )

    import django

    django.setup()


class Person:
    """As much of a user as a middleware looks at."""

    def __init__(self, pk: int | None) -> None:
        self.pk = pk
        self.is_authenticated = pk is not None
        self.is_active = True


def logging_in(get_response: Any) -> Any:
    """In place of the authentication's middleware: who is asking stands in a header."""

    def middleware(request: HttpRequest) -> HttpResponse:
        number = request.headers.get("X-User")
        request.user = Person(int(number) if number else None)
        return get_response(request)

    return middleware


def noting(get_response: Any) -> Any:
    """Behind Diana: how many are inside when a view is asked."""

    def middleware(request: HttpRequest) -> HttpResponse:
        INSIDE.append(ACTIVITY[-1].inflight)
        return get_response(request)

    return middleware


ACTIVITY: list[Any] = []
"""What the factor of a test was opened with."""
INSIDE: list[int] = []


def hello(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("hello")


async def ahello(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("hello")


def own_headers(request: HttpRequest) -> HttpResponse:
    return HttpResponse(headers={"RateLimit": '"own";r=1', "X-RateLimit-Limit": "7"})


def stream(request: HttpRequest) -> StreamingHttpResponse:
    numbers = map(str, range(10))

    async def later() -> AsyncIterator[str]:
        for number in numbers:
            yield number

    return StreamingHttpResponse(later() if hasattr(request, "scope") else numbers)


urlpatterns = [
    path("async", ahello),
    path("own", own_headers),
    path("stream", stream),
    re_path("^.*$", hello),
]
