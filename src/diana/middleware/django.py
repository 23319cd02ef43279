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
from django.core.exceptions import MiddlewareNotUsed
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string

from diana.core.errors import ConfigError
from diana.core.verdict import Verdict
from diana.guard import AsyncGuard, Guard
from diana.middleware import workers
from diana.middleware.answer import Answers, Fields
from diana.middleware.at_hand import (
    MIDDLEWARE,
    beside_own_words,
    checked_denied,
)
from diana.middleware.delay import WAITING, deny_instead
from diana.middleware.django_slots import release_with_request
from diana.middleware.identity import Finders, afind, find, is_async
from diana.middleware.inside import enter_in_loop
from diana.middleware.opening import RULES_FILE, open_guard
from diana.middleware.wsgi import EnvironRequest, lines_from_fields, lines_to_add
from diana.waiting import Timer

LISTS = ("RateLimit", "RateLimit-Policy")


class RateLimitMiddleware:
    """Limits what Django answers, by `DIANA_RULES` and the other settings that begin so. Views find the verdict as `request.diana`."""

    sync_capable = True
    async_capable = True
    enabled = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        if setting("ENABLED") is False:
            raise MiddlewareNotUsed("DIANA_ENABLED is False")
        self.get_response = get_response
        clock = setting("CLOCK")
        options = (
            rules_setting(), setting("STORE"), setting("LOCAL_STORE"), clock, observers_setting(),
        )  # fmt: skip
        finders = [imported_setting(name) for name in ("ACCOUNT", "DEVICE", "TIER")]
        denied = checked_denied(imported_setting("DENIED"))
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
            self.aguard = open_guard(AsyncGuard, *options)
            self.finders = Finders(*map(awaited, finders))
            self._denied = awaited(denied)
        else:
            self.guard = open_guard(Guard, *options)
            self.finders = Finders(*map(called, finders))
            self._denied = called(denied)
        opened = self.aguard if self._is_async else self.guard
        workers.warn_of_several_workers(opened)
        self._answers = Answers(opened.policy)
        self._timer = Timer(clock)

    def __call__(self, asked: HttpRequest) -> Any:
        if self._is_async:
            return self._acall(asked)
        request, guard = environ_request(asked), self.guard
        if workers.after_fork:
            workers.warn_after_fork(guard)
        if self.finders:
            needed = self.finders.needed(guard.policy, request)
            request.identities = {kind: find(finder, asked) for kind, finder in needed.items()}
        verdict = guard.wait(request) if guard.policy.waits else guard.check(request)
        asked.diana = verdict
        asked.META[MIDDLEWARE] = self
        answers = self._answers = self._answers.of(guard.policy)
        if not verdict.allowed:
            own = None if self._denied is None else self._denied(asked, verdict)
            return refusal(answers, verdict, own)
        with guard.inside():
            if not verdict.match.holds:
                return self._let_in(asked, guard, verdict, answers)
            held = guard.held(verdict)
            try:
                response = self._let_in(asked, guard, verdict, answers)
                return release_with_request(asked, response, held)
            except BaseException:
                held.release()
                raise

    def _let_in(
        self, asked: HttpRequest, guard: Guard, verdict: Verdict, answers: Answers
    ) -> HttpResponse:
        if verdict.delay:
            self._timer.sleep(verdict.delay)
        if not verdict.match.by_outcome:
            return add_fields(answers.fields(verdict), self.get_response(asked))
        try:
            response = self.get_response(asked)
        except Exception:
            guard.settle_later(verdict, status=500)
            raise
        guard.settle_later(verdict, status=response.status_code)
        return add_fields(answers.fields(verdict), response)

    async def _acall(self, asked: HttpRequest) -> HttpResponse:
        request, guard = environ_request(asked), self.aguard
        if self.finders:
            needed = self.finders.needed(guard.policy, request)
            request.identities = {
                kind: await afind(finder, asked) for kind, finder in needed.items()
            }
        verdict = await (guard.wait if guard.policy.waits else guard.check)(request)
        asked.diana = verdict
        asked.META[MIDDLEWARE] = self
        answers = self._answers = self._answers.of(guard.policy)
        if verdict.delay and WAITING.is_full:
            await guard.refund(verdict)
            verdict = asked.diana = deny_instead(verdict)
        if not verdict.allowed:
            own = None if self._denied is None else await self._denied(asked, verdict)
            return refusal(answers, verdict, own)
        activity = guard.activity
        if activity is None:
            return await self._ahold(asked, guard, verdict, answers)
        enter_in_loop(activity)
        try:
            return await self._ahold(asked, guard, verdict, answers)
        finally:
            activity.leave()

    async def _ahold(
        self, asked: HttpRequest, guard: AsyncGuard, verdict: Verdict, answers: Answers
    ) -> HttpResponse:
        if not verdict.match.holds:
            return await self._alet_in(asked, guard, verdict, answers)
        held = guard.held(verdict)
        try:
            response = await self._alet_in(asked, guard, verdict, answers)
            return release_with_request(asked, response, held)
        except BaseException:
            held.release()
            raise

    async def _alet_in(
        self, asked: HttpRequest, guard: AsyncGuard, verdict: Verdict, answers: Answers
    ) -> HttpResponse:
        if verdict.delay:
            await self._delay(verdict)
        if not verdict.match.by_outcome:
            return add_fields(answers.fields(verdict), await self.get_response(asked))
        try:
            response = await self.get_response(asked)
        except Exception:
            await guard.settle_later(verdict, status=500)
            raise
        # Cancelled: the client has left, and stays charged.
        await guard.settle_later(verdict, status=response.status_code)
        return add_fields(answers.fields(verdict), response)

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


def refusal(answers: Answers, verdict: Verdict, own: HttpResponse | None = None) -> HttpResponse:
    """The answer to a denied request: the application's own, or Diana's."""
    status, fields, body = answers.denial(verdict)
    if own is not None:
        for name, value in lines_from_fields(beside_own_words(fields)):
            own.headers.setdefault(name, value)
        return own
    content = b"" if verdict.request.method == "HEAD" else body
    return HttpResponse(content, status=status, headers=dict(lines_from_fields(fields)))


def add_fields(fields: Fields, response: HttpResponse) -> HttpResponse:
    """A response of Django has one line per name; lists are added to."""
    for name, value in lines_to_add(fields, response.headers):
        own = response.headers.get(name)
        response.headers[name] = f"{own}, {value}" if own and name in LISTS else value
    return response


def environ_request(asked: HttpRequest) -> EnvironRequest:
    # META is an environ in both stacks; but its PATH_INFO is decoded in two ways, and request.path in one.
    path = quote(asked.path, errors="surrogateescape")
    mount = quote(asked.META.get("SCRIPT_NAME") or "", errors="surrogateescape")
    return EnvironRequest(asked.META, path, mount)


def setting(name: str) -> Any:
    return getattr(settings, f"DIANA_{name}", None)


def rules_setting() -> Any:
    return setting("RULES") or Path(getattr(settings, "BASE_DIR", "")) / RULES_FILE


def observers_setting() -> list[Any]:
    return [_imported(observer) for observer in setting("OBSERVERS") or ()]


def imported_setting(name: str) -> Any:
    """A function, or where to find it."""
    return _imported(setting(name))


def _imported(value: Any) -> Any:
    return import_string(value) if isinstance(value, str) else value


def awaited(function: Any) -> Any:
    """A plain function may ask the database, which an event loop must not."""
    return sync_to_async(function) if callable(function) and not is_async(function) else function


def called(function: Any) -> Any:
    return async_to_sync(function) if callable(function) and is_async(function) else function
