"""Rules as a Django middleware, in sync and in async stacks.

    MIDDLEWARE = [..., "diana.django.RateLimitMiddleware"]
    DIANA_RULES = BASE_DIR / "diana.yaml"

First in the list, it spares Django everything a denied request would cost. Behind the authentication middleware it may count by
user: `DIANA_ACCOUNT = "diana.django.user"`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string

from diana.core.errors import ConfigError
from diana.core.verdict import Verdict
from diana.guard import AsyncGuard, Guard
from diana.middleware.answer import Answers, Fields
from diana.middleware.delay import WAITING, deny_instead
from diana.middleware.identity import Finder, Finders, afind, find, is_async
from diana.middleware.opening import RULES_FILE, open_guard
from diana.middleware.wsgi import EnvironRequest, lines_from_fields, lines_to_add
from diana.waiting import Timer

LISTS = ("RateLimit", "RateLimit-Policy")


class RateLimitMiddleware:
    """Limits what Django answers, by `DIANA_RULES` and the other settings that begin so."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        store, clock = _setting("STORE"), _setting("CLOCK")
        observers = [_imported(observer) for observer in _setting("OBSERVERS") or ()]
        options = (_setting("RULES") or _rules_file(), store, clock, observers)
        finders = [_imported(_setting(name)) for name in ("ACCOUNT", "DEVICE", "TIER")]
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
            self.aguard = open_guard(AsyncGuard, *options)
            self._finders = Finders(*map(_awaited, finders))
        else:
            self.guard = open_guard(Guard, *options)
            self._finders = Finders(*map(_called, finders))
        self._answers = Answers((self.aguard if self._is_async else self.guard).policy)
        self._timer = Timer(clock)

    def __call__(self, asked: HttpRequest) -> Any:
        if self._is_async:
            return self._acall(asked)
        request, guard = _request(asked), self.guard
        if self._finders:
            needed = self._finders.needed(guard.policy, request)
            request.identities = {kind: find(finder, asked) for kind, finder in needed.items()}
        verdict = guard.check(request)
        answers = self._answers = self._answers.of(guard.policy)
        if not verdict.allowed:
            return _refusal(answers, verdict)
        if verdict.delay:
            self._timer.sleep(verdict.delay)
        if not verdict.match.by_outcome:
            return _add_fields(answers.fields(verdict), self.get_response(asked))
        try:
            response = self.get_response(asked)
        except Exception:
            guard.settle_later(verdict, status=500)
            raise
        guard.settle_later(verdict, status=response.status_code)
        return _add_fields(answers.fields(verdict), response)

    async def _acall(self, asked: HttpRequest) -> HttpResponse:
        request, guard = _request(asked), self.aguard
        if self._finders:
            needed = self._finders.needed(guard.policy, request)
            request.identities = {
                kind: await afind(finder, asked) for kind, finder in needed.items()
            }
        verdict = await guard.check(request)
        answers = self._answers = self._answers.of(guard.policy)
        if not verdict.allowed:
            return _refusal(answers, verdict)
        if verdict.delay:
            if WAITING.is_full:
                await guard.refund(verdict)
                return _refusal(answers, deny_instead(verdict))
            await self._delay(verdict)
        if not verdict.match.by_outcome:
            return _add_fields(answers.fields(verdict), await self.get_response(asked))
        try:
            response = await self.get_response(asked)
        except Exception:
            await guard.settle_later(verdict, status=500)
            raise
        # Cancelled: the client has left, and stays charged.
        await guard.settle_later(verdict, status=response.status_code)
        return _add_fields(answers.fields(verdict), response)

    async def _delay(self, verdict: Verdict) -> None:
        """Django cancels the request of a client that leaves; then its place is given back."""
        try:
            with WAITING.place():
                await self._timer.asleep(verdict.delay)
        except BaseException:
            await self.aguard.refund(verdict)
            raise


def user(request: HttpRequest) -> Any:
    """Who is logged in, by primary key; None otherwise. The middleware has to stand behind the authentication's."""
    person = getattr(request, "user", None)
    if person is None:
        raise ConfigError("there is no request.user; put diana behind AuthenticationMiddleware")
    return person.pk if person.is_authenticated else None


def _refusal(answers: Answers, verdict: Verdict) -> HttpResponse:
    status, fields, body = answers.denial(verdict)
    content = b"" if verdict.request.method == "HEAD" else body
    return HttpResponse(content, status=status, headers=dict(lines_from_fields(fields)))


def _add_fields(fields: Fields, response: HttpResponse) -> HttpResponse:
    """A response of Django has one line per name; lists are added to."""
    for name, value in lines_to_add(fields, response.headers):
        own = response.headers.get(name)
        response.headers[name] = f"{own}, {value}" if own and name in LISTS else value
    return response


def _request(asked: HttpRequest) -> EnvironRequest:
    # META is an environ in both stacks; but its PATH_INFO is decoded in two ways, and request.path in one.
    path = quote(asked.path, errors="surrogateescape")
    mount = quote(asked.META.get("SCRIPT_NAME") or "", errors="surrogateescape")
    return EnvironRequest(asked.META, path, mount)


def _setting(name: str) -> Any:
    return getattr(settings, f"DIANA_{name}", None)


def _rules_file() -> Path:
    return Path(getattr(settings, "BASE_DIR", "")) / RULES_FILE


def _imported(value: Any) -> Any:
    """A function, or where to find it."""
    return import_string(value) if isinstance(value, str) else value


def _awaited(finder: Finder | None) -> Finder | None:
    """A plain function may ask the database, which an event loop must not."""
    return sync_to_async(finder) if callable(finder) and not is_async(finder) else finder


def _called(finder: Finder | None) -> Finder | None:
    return async_to_sync(finder) if callable(finder) and is_async(finder) else finder
