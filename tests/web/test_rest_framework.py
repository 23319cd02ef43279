"""Throttles of Django REST framework: each view counts by itself, all or nothing, and what a client reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from diana import ConfigError
from diana.testing import FakeClock
from tests.web import django_site  # noqa: F401  # sets Django up
from tests.web.calls import Answer, ask, ask_wsgi

from diana.rest_framework import RateLimitThrottle, rate_limit  # isort: skip
from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.test import override_settings  # isort: skip
from django.urls import include, path  # isort: skip
from rest_framework.decorators import api_view, throttle_classes  # isort: skip
from rest_framework.response import Response  # isort: skip
from rest_framework.throttling import BaseThrottle  # isort: skip
from rest_framework.views import APIView  # isort: skip

Asked = Callable[..., Answer]


def site(*patterns: Any, handler: Any = WSGIHandler, **settings: Any) -> Asked:
    class Urls:
        urlpatterns = list(patterns)

    def asked(url: str) -> Answer:
        with override_settings(ROOT_URLCONF=Urls, **settings):
            call = ask_wsgi if handler is WSGIHandler else ask
            return call(handler(), url, headers=[("Accept", "application/json")])

    return asked


def view_with(*throttles: Any) -> Any:
    class Items(APIView):  # type: ignore[misc]
        authentication_classes = ()
        throttle_classes = throttles

        def get(self, request: Any) -> Response:
            return Response({})

    return Items.as_view()


def statuses(asked: Asked, *urls: str) -> list[int]:
    return [asked(url).status for url in urls]


@pytest.mark.parametrize("handler", [WSGIHandler, ASGIHandler])
def test_each_function_view_counts_by_itself(handler: Any) -> None:
    burst = rate_limit("2/minute", clock=FakeClock())

    @api_view(["GET"])  # type: ignore[untyped-decorator]
    @throttle_classes([burst])  # type: ignore[untyped-decorator]
    def search(request: Any) -> Response:
        return Response({})

    @api_view(["GET"])  # type: ignore[untyped-decorator]
    @throttle_classes([burst])  # type: ignore[untyped-decorator]
    def login(request: Any) -> Response:
        return Response({})

    asked = site(path("search", search), path("login", login), handler=handler)
    assert statuses(asked, "/search", "/search", "/login", "/search") == [200, 200, 200, 429]


def test_a_client_on_a_deny_list_is_forbidden() -> None:
    barred = rate_limit("2/minute", deny={"ip": ["203.0.113.0/24"]})
    answer = site(path("items", view_with(barred)))("/items")
    assert (answer.status, answer.header("cache-control")) == (403, "no-store")
    assert answer.header("retry-after") is None


def test_each_view_counts_by_itself_under_default_throttles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Everywhere(RateLimitThrottle):
        rate = "1/minute"
        options = {"clock": FakeClock()}

    # As DEFAULT_THROTTLE_CLASSES does it when REST framework is imported.
    monkeypatch.setattr(APIView, "throttle_classes", [Everywhere])

    def made() -> Any:
        @api_view(["GET"])  # type: ignore[untyped-decorator]
        def view(request: Any) -> Response:
            return Response({})

        return view

    class Default(APIView):  # type: ignore[misc]
        def get(self, request: Any) -> Response:
            return Response({})

    one, two = made(), made()
    below = include([path("two", two), path("two/again", two)])
    asked = site(path("one", one), path("below/", below), path("default", Default.as_view()))
    urls = ["/below/two", "/one", "/default", "/one", "/below/two/again"]
    assert statuses(asked, *urls) == [200, 200, 200, 429, 429]


def test_views_of_one_name_are_numbered_by_their_urls_and_not_by_who_is_called_first() -> None:
    seen: list[str] = []

    def observe(request: Any, verdict: Any) -> None:
        seen.append(verdict.meters[0].id)

    throttle = rate_limit("5/minute", clock=FakeClock(), observers=[observe])
    one, two = (view_with(throttle) for _ in range(2))
    asked = site(path("one", one), path("two", two))
    assert statuses(asked, "/two", "/one", "/two") == [200, 200, 200]
    assert "#2" in seen[0]
    assert "#2" not in seen[1]
    assert seen[0] == seen[2]


def test_two_throttles_deny_and_the_longest_wait_is_told() -> None:
    for rates in (("1/minute", "1/hour"), ("1/hour", "1/minute")):
        clock = FakeClock()
        asked = site(path("", view_with(*(rate_limit(rate, clock=clock) for rate in rates))))
        assert asked("/").status == 200
        denied = asked("/")
        assert (denied.status, denied.header("Retry-After")) == (429, "3600")
        for field in ("RateLimit", "RateLimit-Policy"):
            items = (denied.header(field) or "").split(", ")
            assert [item.split(";")[0] for item in items] == [f'"{rate} by ip"' for rate in rates]
        assert b"3600 seconds" in denied.body


def test_one_set_of_numbers_is_told_of_several_throttles() -> None:
    clock = FakeClock()
    options: Any = {"clock": clock, "headers": ["ietf", "legacy"]}
    for rates in (("3/minute", "10/day"), ("10/day", "3/minute")):
        throttles = [rate_limit(rate, **options) for rate in rates]
        answer = site(path("", view_with(*throttles)))("/")
        assert answer.header("X-RateLimit-Limit") == "3"
        assert answer.header("X-RateLimit-Remaining") == "2"
        assert answer.header("X-RateLimit-Reset") == "20"
        items = (answer.header("RateLimit") or "").split(", ")
        assert [item.split(";")[0] for item in items] == [f'"{rate} by ip"' for rate in rates]


@pytest.mark.parametrize("rates", [("2/minute", "10/day"), ("10/day", "2/minute")])
def test_what_one_throttle_denies_no_other_charges(rates: tuple[str, str]) -> None:
    clock = FakeClock()
    asked = site(path("", view_with(*(rate_limit(rate, clock=clock) for rate in rates))))
    assert statuses(asked, *["/"] * 6) == [200, 200, 429, 429, 429, 429]
    # What was charged before the denial is refunded, so it is not announced either.
    assert asked("/").header("RateLimit") == '"2/minute by ip";r=0;t=30'
    clock.advance(30)
    assert '"10/day by ip";r=7' in (asked("/").header("RateLimit") or "")


def test_throttles_of_one_rate_with_functions_count_apart() -> None:
    def user(request: Any) -> str:
        return str(request.query_params["user"])

    def org(request: Any) -> str:
        return str(request.query_params["org"])

    for actors in ((user, org), (partial(user), partial(org))):
        throttles = [rate_limit("2/minute", actor=actor) for actor in actors]
        asked = site(path("", view_with(*throttles)), DIANA_CLOCK=FakeClock())
        users = [(7, 7), (7, 7), (1, 2), (1, 1), (3, 1)]
        assert statuses(asked, *(f"/?user={user}&org={org}" for user, org in users)) == [200] * 5


def test_beside_a_throttle_of_another_kind() -> None:
    class Never(BaseThrottle):  # type: ignore[misc]
        def allow_request(self, request: Any, view: Any) -> bool:
            return False

        def wait(self) -> float:
            return 7200

    asked = site(path("", view_with(rate_limit("1/minute", clock=FakeClock()), Never)))
    assert [asked("/").header("Retry-After") for _ in range(2)] == ["7200", "7200"]


def test_options_without_effect_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"status": 503}, {"body": "no"}, {"denied": lambda *_: None}]
    for option in wrong:
        with pytest.raises(ConfigError, match="has no effect here; REST framework answers"):
            rate_limit("1/hour", **option)
    with pytest.raises(ConfigError, match="actor= has no effect here; write it as an attribute"):

        class Throttle(RateLimitThrottle):
            rate = "1/hour"
            options = {"actor": "ip"}


def test_all_views_of_one_name_count_together() -> None:
    throttle = rate_limit("2/minute", name="all", clock=FakeClock())
    asked = site(path("one", view_with(throttle)), path("two", view_with(throttle)))
    assert statuses(asked, "/one", "/two", "/one") == [200, 200, 429]
