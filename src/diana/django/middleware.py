"""Rules as a Django middleware, in sync and in async stacks.

    MIDDLEWARE = [..., "diana.django.RateLimitMiddleware"]
    DIANA_RULES = BASE_DIR / "diana.yaml"

First in the list, it spares Django everything a denied request would cost. Behind the authentication middleware it may count by
user: `DIANA_ACCOUNT = "diana.django.user"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import MiddlewareNotUsed
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from diana.core.errors import ConfigError, shown
from diana.django.slots_of_request import release_with_request
from diana.guard import AsyncGuard, Guard
from diana.responses.denial_response import DenialResponse, Fields, ResponseBuilder
from diana.slots.wait_queue import Timer
from diana.web import startup as workers
from diana.web.admission import (
    MIDDLEWARE,
    WAITING,
    beside_own_words,
    checked_denied,
    deny_instead,
    enter_in_loop,
)
from diana.web.identity_callbacks import Finders, afind, find, is_async
from diana.web.request_charges import ADMISSION, Admission, Charged, admission_of, report_of
from diana.web.startup import RULES_FILE, open_guard
from diana.wsgi import EnvironRequest, lines_from_fields, lines_to_add

SETTINGS = {kind: f"DIANA_{kind.upper()}" for kind in ("account", "device", "tier")}
"""How the middleware is given its functions."""
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
        self.finders = Finders(*map(awaited if self._is_async else called, finders))
        check = partial(self.finders.require, SETTINGS)
        if self._is_async:
            markcoroutinefunction(self)
            self.aguard = open_guard(AsyncGuard, *options, check)
            self.denied = awaited(denied)
        else:
            self.guard = open_guard(Guard, *options, check)
            self.denied = called(denied)
        opened = self.aguard if self._is_async else self.guard
        workers.warn_of_several_workers(opened)
        self._answers = ResponseBuilder(opened.policy)
        self._timer = Timer(clock)

    def __call__(self, asked: HttpRequest) -> Any:
        if self._is_async:
            return self._acall(asked)
        request, guard = environ_request(asked), self.guard
        join_scope(asked)
        if workers.is_undecided:
            workers.look_again()
        if self.finders:
            needed = self.finders.needed(guard.policy, request)
            request.identities = {kind: find(finder, asked) for kind, finder in needed.items()}
        if not guard.is_observed:
            return self._decide(asked, request, guard)
        request.report, is_own = report_of(asked.META)
        try:
            return self._decide(asked, request, guard)
        finally:
            if is_own:
                request.report.send()

    def _decide(self, asked: HttpRequest, request: EnvironRequest, guard: Guard) -> HttpResponse:
        verdict = guard.wait(request) if guard.policy.waits else guard.check(request)
        asked.diana = verdict
        asked.META[MIDDLEWARE] = self
        answers = self._answers = self._answers.of(guard.policy)
        if not verdict.allowed:
            if ADMISSION in asked.META:
                asked.META[ADMISSION].refund()  # what a middleware around this one charged
            own = None if self.denied is None else self.denied(asked, verdict)
            return refusal(answers.denial(verdict), request, own)
        admission = admission_of(asked.META)
        charged = admission.add(guard, verdict)
        with guard.in_flight():
            if not verdict.match.holds:
                return self._let_in(asked, admission, charged)
            held = charged.held = guard.keep_slots(verdict)
            try:
                response = self._let_in(asked, admission, charged)
                return release_with_request(asked, response, held)
            except BaseException:
                held.release()
                raise

    def _let_in(self, asked: HttpRequest, admission: Admission, charged: Charged) -> HttpResponse:
        verdict = charged.verdict
        if verdict.delay:
            admission.report_wait()
            self._timer.sleep(verdict.delay)
        try:
            response = self.get_response(asked)
        except Exception:
            admission.settle(500, charged)
            raise
        admission.settle(response.status_code, charged)
        if not charged.is_refunded:
            return add_fields(self._answers.fields(verdict), response)
        route = admission.route_denial
        if self.denied is None or route is None:
            return response
        own = self.denied(asked, route.verdict)
        return response if own is None else with_denial(own, route.denial)

    async def _acall(self, asked: HttpRequest) -> HttpResponse:
        request, guard = environ_request(asked), self.aguard
        join_scope(asked)
        if workers.is_undecided:
            workers.look_again()
        if self.finders:
            needed = self.finders.needed(guard.policy, request)
            request.identities = {
                kind: await afind(finder, asked) for kind, finder in needed.items()
            }
        if not guard.is_observed:
            return await self._adecide(asked, request, guard)
        request.report, is_own = report_of(asked.META)
        try:
            return await self._adecide(asked, request, guard)
        finally:
            if is_own:
                request.report.send()

    async def _adecide(
        self, asked: HttpRequest, request: EnvironRequest, guard: AsyncGuard
    ) -> HttpResponse:
        verdict = await (guard.wait if guard.policy.waits else guard.check)(request)
        asked.META[MIDDLEWARE] = self
        answers = self._answers = self._answers.of(guard.policy)
        if verdict.delay and WAITING.is_full:
            await guard.refund(verdict)
            denied = deny_instead(verdict)
            if ADMISSION in asked.META and asked.META[ADMISSION].report is not None:
                asked.META[ADMISSION].report.replace(verdict, denied)
            verdict = denied
        asked.diana = verdict
        if not verdict.allowed:
            if ADMISSION in asked.META:
                await asked.META[ADMISSION].arefund()
            own = None if self.denied is None else await self.denied(asked, verdict)
            return refusal(answers.denial(verdict), request, own)
        admission = admission_of(asked.META)
        charged = admission.add(guard, verdict)
        activity = guard.activity
        if activity is None:
            return await self._ahold(asked, admission, charged)
        enter_in_loop(activity)
        try:
            return await self._ahold(asked, admission, charged)
        finally:
            activity.leave()

    async def _ahold(
        self, asked: HttpRequest, admission: Admission, charged: Charged
    ) -> HttpResponse:
        verdict = charged.verdict
        if not verdict.match.holds:
            return await self._alet_in(asked, admission, charged)
        held = charged.held = self.aguard.keep_slots(verdict)
        try:
            response = await self._alet_in(asked, admission, charged)
            return release_with_request(asked, response, held)
        except BaseException:
            held.release()
            raise

    async def _alet_in(
        self, asked: HttpRequest, admission: Admission, charged: Charged
    ) -> HttpResponse:
        verdict = charged.verdict
        if verdict.delay:
            admission.report_wait()
            await self._delay(charged)
        try:
            response = await self.get_response(asked)
        except Exception:
            await admission.asettle(500, charged)
            raise
        # Cancelled: the client has left, and stays charged.
        await admission.asettle(response.status_code, charged)
        if not charged.is_refunded:
            return add_fields(self._answers.fields(verdict), response)
        route = admission.route_denial
        if self.denied is None or route is None:
            return response
        own = await self.denied(asked, route.verdict)
        return response if own is None else with_denial(own, route.denial)

    async def _delay(self, charged: Charged) -> None:
        """Django cancels the request of a client that leaves; then it is refunded."""
        try:
            with WAITING.place():
                await self._timer.asleep(charged.verdict.delay)
        except BaseException:
            charged.is_final = True
            await self.aguard.refund(charged.verdict)
            raise


def user(request: HttpRequest) -> Any:
    """Who is logged in, by primary key; None otherwise. The middleware has to stand behind the authentication's."""
    person = getattr(request, "user", None)
    if person is None:
        raise ConfigError("there is no request.user; put diana behind AuthenticationMiddleware")
    return person.pk if person.is_authenticated else None


def refusal(denial: DenialResponse, asked: Any, own: HttpResponse | None) -> HttpResponse:
    """The answer to a denied request: the application's own, or Diana's."""
    if own is not None:
        return with_denial(own, denial)
    content = b"" if asked.method == "HEAD" else denial.body
    headers = dict(lines_from_fields(denial.headers))
    return HttpResponse(content, status=denial.status, headers=headers)


def with_denial(own: HttpResponse, denial: DenialResponse) -> HttpResponse:
    """The application's own answer, with the header lines of a denial that it lacks."""
    if not isinstance(own, HttpResponseBase):
        raise ConfigError(
            f"denied must return an HttpResponse or None (got {shown(own)}); write return JsonResponse({{...}}, status=429)"
        )
    for name, value in lines_from_fields(beside_own_words(denial.headers)):
        own.headers.setdefault(name, value)
    return own


def add_fields(fields: Fields, response: HttpResponse) -> HttpResponse:
    """A response of Django has one line per name; lists are added to."""
    for name, value in lines_to_add(fields, response.headers):
        own = response.headers.get(name)
        response.headers[name] = f"{own}, {value}" if own and name in LISTS else value
    return response


def join_scope(asked: HttpRequest) -> None:
    """Behind the middleware of diana.asgi, around the whole site: what it has begun for this request goes on here."""
    scope = getattr(asked, "scope", None)
    for name in (MIDDLEWARE, ADMISSION):
        if name not in asked.META and scope is not None and name in scope:
            asked.META[name] = scope[name]


def environ_request(asked: HttpRequest) -> EnvironRequest:
    # META is an environ in both stacks; but its PATH_INFO is decoded in two ways, and request.path in one.
    path = quote(asked.path, errors="surrogateescape")
    mount = quote(asked.META.get("SCRIPT_NAME") or "", errors="surrogateescape")
    return EnvironRequest(asked.META, path, mount)


def setting(name: str) -> Any:
    return getattr(settings, f"DIANA_{name}", None)


def rules_setting() -> Any:
    rules = setting("RULES")
    if rules is None or rules == "":
        return Path(getattr(settings, "BASE_DIR", "")) / RULES_FILE
    return rules


def observers_setting() -> list[Any]:
    """Names of entry points, such as `denial_log`, dotted paths and functions."""
    observers = setting("OBSERVERS") or ()
    if isinstance(observers, str) or not isinstance(observers, Iterable):
        raise ConfigError(
            f"DIANA_OBSERVERS must be a list (got {shown(observers)}); write DIANA_OBSERVERS = [{shown(observers)}]"
        )
    return [_observer(observer) for observer in observers]


def _observer(value: Any) -> Any:
    return value if isinstance(value, str) and "." not in value else _imported(value)


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
