"""Rules in front of a WSGI app: Flask, Django, Bottle, your own.

A leaky bucket's delay sleeps the worker's thread, never longer than the queue allows: give such a rule a `max_wait` that your workers can
bear. WSGI has no way to see that a client has left, so a place once taken is not given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.request import Request, one_of
from diana.core.verdict import Verdict
from diana.guard import Guard
from diana.responses.denial_response import Fields, ResponseBuilder
from diana.slots.wait_queue import Timer
from diana.web import request_charges as admissions
from diana.web import startup as workers
from diana.web.admission import (
    MIDDLEWARE,
    VERDICT,
    Denied,
    beside_own_words,
    checked_answer,
    checked_denied,
    leave_after,
)
from diana.web.identity_callbacks import ARGUMENTS, Finder, Finders, find
from diana.web.request_charges import (
    ADMISSION,
    Admission,
    Charged,
    admission_of,
    report_of,
)
from diana.web.startup import Rules, check_options, open_guard
from diana.web.status_settlement import BodyWithEnd, pass_by_outcome

__all__ = ["RateLimitMiddleware"]


Environ = MutableMapping[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Any, Any], Iterable[bytes]]

IN_WORDS = {
    b"cache-control": "Cache-Control",
    b"content-length": "Content-Length",
    b"content-type": "Content-Type",
    b"ratelimit": "RateLimit",
    b"ratelimit-policy": "RateLimit-Policy",
    b"retry-after": "Retry-After",
    b"x-ratelimit-limit": "X-RateLimit-Limit",
    b"x-ratelimit-remaining": "X-RateLimit-Remaining",
    b"x-ratelimit-reset": "X-RateLimit-Reset",
}
SINGLE = "x-ratelimit-"
HAVE_COMMAS = frozenset(
    {
        "accept", "accept-encoding", "accept-language", "authorization", "cache-control", "cookie", "date", "forwarded", "from",
        "if-match", "if-modified-since", "if-none-match", "if-unmodified-since", "proxy-authorization", "range", "referer",
        "user-agent", "via", "x-forwarded-for",
    }
)  # fmt: skip
"""Headers that hold commas by themselves. In others one means that a server joined two lines, or a name with `_` to its twin with `-`:
an environ no longer tells them apart, and which of the two the app believes is not for the client to choose."""
WITHOUT_PREFIX = ("CONTENT_TYPE", "CONTENT_LENGTH")


class EnvironHeaders:
    """The headers of an environ, read when a rule asks for one."""

    __slots__ = ("_environ",)

    def __init__(self, environ: Environ) -> None:
        self._environ = environ

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for field, value in self._environ.items():
            if field.startswith("HTTP_"):
                yield field[5:].replace("_", "-"), value
        for field in WITHOUT_PREFIX:
            if self._environ.get(field):
                yield field.replace("_", "-"), self._environ[field]


class EnvironRequest(Request):
    """What rules see of a WSGI environ; the environ itself is there as `environ`."""

    __slots__ = ("environ",)

    def __init__(self, environ: Environ, path: str | None = None, mount: str | None = None) -> None:
        self.headers: Any
        super().__init__(
            environ["REQUEST_METHOD"],
            _path_of_mounted(environ) if path is None else path,
            EnvironHeaders(environ),
            environ.get("QUERY_STRING", ""),
            environ.get("REMOTE_ADDR") or None,
            quote(environ.get("SCRIPT_NAME", ""), encoding="latin-1") if mount is None else mount,
        )
        self.environ = environ

    def detach(self) -> None:
        self.headers = list(self.headers)
        self.environ = {}

    def header_lines(self, name: str) -> list[str]:
        if not self.environ:
            return super().header_lines(name)
        field = name.upper().replace("-", "_")
        line = self.environ.get(field if field in WITHOUT_PREFIX else f"HTTP_{field}")
        return [line] if line else []

    def header(self, name: str) -> str | None:
        lines = self.header_lines(name)
        if lines and "," in lines[0] and name not in HAVE_COMMAS:
            return one_of(lines[0].split(","))
        return one_of(lines)


class RateLimitMiddleware:
    """`app.wsgi_app = RateLimitMiddleware(app.wsgi_app, rules="diana.yaml")` for Flask; around any WSGI app.

    `account`, `device` and `tier` are functions of a `Request` that has the `environ` too; `denied` is one of that request and the
    verdict, and gives a WSGI app, such as a Response of Flask. The app finds the verdict as `environ["diana.verdict"]`. `close()` closes
    what it opened; a `guard` is closed by its owner.
    """

    def __init__(
        self,
        app: App,
        rules: Rules | None = None,
        *,
        guard: Guard | None = None,
        account: Finder | None = None,
        device: Finder | None = None,
        tier: Finder | None = None,
        denied: Denied | None = None,
        enabled: bool = True,
        store: str | Store | Client | None = None,
        local_store: str | Store | None = None,
        clock: Clock | None = None,
        observers: Sequence[str | Observer] = (),
    ) -> None:
        self.app = app
        self.enabled = enabled
        self.denied = checked_denied(denied)
        self._owned = enabled and guard is None
        if not enabled:
            return
        check_options(guard, rules, store, local_store, clock, observers)
        self.finders = Finders(account, device, tier)
        self.finders.require_sync()
        self._finders = self.finders if self.finders else None
        check = partial(self.finders.require, ARGUMENTS)
        if guard is None:
            guard = open_guard(Guard, rules, store, local_store, clock, observers, check)
        else:
            check(guard.policy)
        self.guard = guard
        workers.warn_of_several_workers(self.guard)
        self._timer = Timer(self.guard.clock)
        self._answers = ResponseBuilder(self.guard.policy)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        environ[MIDDLEWARE] = self
        if not self.enabled:
            return self.app(environ, start_response)
        request = EnvironRequest(environ)
        guard = self.guard
        if workers.is_undecided:
            workers.look_again()
        if not guard.is_observed:
            return self._decide(request, environ, start_response)
        request.report, is_own = report_of(environ)
        if not is_own:
            return self._decide(request, environ, start_response)
        report = request.report
        try:
            answer = self._decide(request, environ, start_response)
        except BaseException:
            report.send()
            raise
        # An app may begin its response with the first piece only.
        return answer if report.is_sent else BodyWithEnd(answer, report.send)

    def _decide(
        self, request: EnvironRequest, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        guard = self.guard
        if self._finders is not None:
            needed = self._finders.needed(guard.policy, request)
            request.identities = {kind: find(finder, request) for kind, finder in needed.items()}
        policy = guard.policy
        verdict = guard.wait(request) if policy.waits else guard.check(request)
        environ[VERDICT] = verdict
        self._answers = answers = self._answers.of(policy)
        if not verdict.allowed:
            return self._refuse(request, environ, start_response, verdict, answers)
        request.detach()
        admission = admission_of(environ)
        charged = admission.add(guard, verdict)
        held = charged.held = guard.keep_slots(verdict) if verdict.match.holds else None
        activity = guard.activity
        if activity is not None:
            activity.enter()
        try:
            answer = self._let_in(environ, start_response, admission, charged, answers)
        except BaseException:
            if activity is not None:
                activity.leave()
            if held is not None:
                held.release()
            raise
        if activity is not None:
            answer = leave_after(answer, environ, activity)
        return answer if held is None else BodyWithEnd(answer, held.release)

    def _refuse(
        self,
        request: EnvironRequest,
        environ: Environ,
        start_response: StartResponse,
        verdict: Verdict,
        answers: ResponseBuilder,
    ) -> Iterable[bytes]:
        admission: Admission | None = environ.get(ADMISSION)
        if admission is not None:
            admission.refund()  # what a middleware around this one charged
            if admission.report is not None:
                admission.report.send()
        status, headers, body = answers.denial(verdict)
        own = None if self.denied is None else checked_answer(self.denied(request, verdict))
        request.detach()
        if own is not None:
            answered: Iterable[bytes] = own(environ, _start_beside(headers, start_response))
            return answered
        start_response(status_line(status), lines_from_fields(headers))
        return [] if request.method == "HEAD" else [body]

    def _let_in(
        self,
        environ: Environ,
        start_response: StartResponse,
        admission: Admission,
        charged: Charged,
        answers: ResponseBuilder,
    ) -> Iterable[bytes]:
        verdict = charged.verdict
        if verdict.delay:
            admission.report_wait()
            self._timer.sleep(verdict.delay)
        fields = answers.fields(verdict)
        start = start_response
        if fields or admission.report is not None:
            start = _start_admitted(fields, start_response, admission, charged)
        if verdict.match.by_outcome or admissions.routes_see_status:
            return pass_by_outcome(
                self.app, environ, start, lambda status: admission.settle(status, charged)
            )
        return self.app(environ, start)

    def close(self) -> None:
        """Close the stores that this middleware opened."""
        if self._owned:
            self.guard.close()


def lines_from_fields(fields: Fields) -> list[tuple[str, str]]:
    """Header lines as WSGI has them."""
    return [(IN_WORDS[name], value.decode("latin-1")) for name, value in fields]


def status_line(status: int) -> str:
    """`503 Service Unavailable`."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Limited"


def lines_to_add(fields: Fields, own: Iterable[str]) -> list[tuple[str, str]]:
    """The lines to add to a response that has fields of these names: of single numbers, the app's own are the only ones."""
    lines = lines_from_fields(fields)
    if any(name.lower().startswith(SINGLE) for name in own):
        return [line for line in lines if not line[0].lower().startswith(SINGLE)]
    return lines


def _path_of_mounted(environ: Environ) -> str:
    """As the client sent it, whatever the app is mounted at. It comes decoded once, so it is encoded once."""
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return quote(path, encoding="latin-1")


def _start_beside(fields: Fields, start_response: StartResponse) -> StartResponse:
    """`start_response` that adds the header lines that an answer of the application's own to a denied request lacks."""
    lines = lines_from_fields(beside_own_words(fields))

    def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        names = {name.lower() for name, _ in headers}
        added = [line for line in lines if line[0].lower() not in names]
        return start_response(status, [*headers, *added], *exc_info)

    return start


def _start_admitted(
    fields: Fields, start_response: StartResponse, admission: Admission, charged: Charged
) -> StartResponse:
    """`start_response` that adds the header lines of the middleware to the app's own. If a limit on the route has denied the request, they
    are no longer true."""

    def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        if admission.report is not None:
            admission.report.send()
        if fields and not charged.is_refunded:
            headers = [*headers, *lines_to_add(fields, dict(headers))]
        return start_response(status, headers, *exc_info)

    return start
