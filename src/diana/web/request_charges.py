"""What one request was charged, by the middlewares around the app and by the limits of its route. They are all or nothing together.

A middleware charges a request before it knows the route, and a limit of the route may deny the request later. Then everything charged so
far is refunded and all slots are released, so a denied request is charged by nothing.

A charge ends in one way only: it is refunded because the request was denied, or it is settled when the status of the response is known
(`charge_on`), or it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from diana.core.verdict import Verdict
from diana.engine.observers import RequestReport
from diana.guard import AsyncGuard, Guard
from diana.responses.denial_response import DenialResponse
from diana.slots.acquired_slots import AcquiredSlots

ADMISSION = "diana.admission"
"""In a scope and an environ: the Admission of the request."""

routes_see_status = False
"""Whether a limit on any route of this process charges by the status of the response, so that middlewares have to see it."""

AnyGuard = Guard | AsyncGuard


class RouteDenial(NamedTuple):
    """A limit on the route denied the request and has no answer of its own, so the middleware's `denied` may answer."""

    verdict: Verdict
    denial: DenialResponse


class Charged:
    """What one guard charged an allowed request."""

    __slots__ = ("guard", "held", "is_final", "is_refunded", "verdict")

    def __init__(self, guard: AnyGuard, verdict: Verdict) -> None:
        self.guard = guard
        self.verdict = verdict
        self.held: AcquiredSlots | None = None
        self.is_refunded = self.is_final = False


class Admission:
    """Shared by all that handle one request."""

    __slots__ = ("charged", "report", "route_denial")

    def __init__(self) -> None:
        self.charged: list[Charged] = []
        """From the outermost middleware to the last limit of the route."""
        self.report: RequestReport | None = None
        """None if no middleware around the app has observers."""
        self.route_denial: RouteDenial | None = None

    def add(self, guard: AnyGuard, verdict: Verdict) -> Charged:
        charged = Charged(guard, verdict)
        self.charged.append(charged)
        return charged

    def report_wait(self) -> None:
        """The request begins to wait out its delay, which may be long: observers are called now. What a limit of the route decides after
        that is reported by itself."""
        if self.report is not None:
            self.report.send()

    def refund(self) -> None:
        """The request is denied: nothing of it stays charged."""
        for charged in self._to_refund():
            _in_thread(charged.guard).refund(charged.verdict)

    async def arefund(self) -> None:
        for charged in self._to_refund():
            await _in_loop(charged.guard).refund(charged.verdict)

    def _to_refund(self) -> Iterator[Charged]:
        """Each once, also if this is interrupted: a charge of which a refund has begun is not refunded again."""
        for charged in reversed(self.charged):
            if not charged.is_final:
                charged.is_final = charged.is_refunded = True
                yield charged
            if charged.held is not None:
                charged.held.release()

    def settle(self, status: int, since: Charged | None = None) -> None:
        """The response has this status; each guard settles what it charged, from this charge inwards."""
        for charged in self._to_settle(since):
            _in_thread(charged.guard).settle_later(charged.verdict, status=status)

    async def asettle(self, status: int, since: Charged | None = None) -> None:
        for charged in self._to_settle(since):
            await _in_loop(charged.guard).settle_later(charged.verdict, status=status)

    def _to_settle(self, since: Charged | None) -> Iterator[Charged]:
        place = 0 if since is None else self.charged.index(since)
        for charged in self.charged[place:]:
            if charged.verdict.match.by_outcome and not charged.is_final:
                charged.is_final = True
                yield charged


def see_status() -> None:
    global routes_see_status
    routes_see_status = True


def admission_of(context: MutableMapping[str, Any]) -> Admission:
    """The request's own, begun here if no middleware has begun it."""
    admission: Admission | None = context.get(ADMISSION)
    if admission is None:
        admission = context[ADMISSION] = Admission()
    return admission


def report_of(context: MutableMapping[str, Any]) -> tuple[RequestReport, bool]:
    """Where the observers of this request are told, and whether this call has begun it: its caller sends it."""
    admission = admission_of(context)
    if admission.report is not None:
        return admission.report, False
    admission.report = RequestReport()
    return admission.report, True


def _in_thread(guard: AnyGuard) -> Guard:
    """A middleware of an async stack may stand around a view that runs in a thread."""
    if isinstance(guard, Guard):
        return guard
    found = _for_threads.get(guard)
    if found is None:
        found = _for_threads[guard] = Guard.beside(guard, guard.policy)
    return found


def _in_loop(guard: AnyGuard) -> AsyncGuard:
    if isinstance(guard, AsyncGuard):
        return guard
    found = _for_loops.get(guard)
    if found is None:
        found = _for_loops[guard] = AsyncGuard.beside(guard, guard.policy)
    return found


_for_threads: WeakKeyDictionary[AsyncGuard, Guard] = WeakKeyDictionary()
_for_loops: WeakKeyDictionary[Guard, AsyncGuard] = WeakKeyDictionary()
