"""A limit on a route: what those of all frameworks share.

It counts where the middleware around the app counts: in its store if the limit has a name that other processes know too (`name=`, or the
decorated view's own), else in its local one; with its namespace, `identity`, `missing`, `response`, clock and observers. Without a
middleware it counts in this process, or in a `store` of its own.

Several on one route are all or nothing, together with the middlewares around the app: if one denies, what the others charged is refunded
(`request_charges.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from diana.core.contracts import Client, Clock, Observer, Store
from diana.core.counter import AT_ONCE
from diana.core.duration import spelling_from_micros
from diana.core.errors import ConfigError, shown
from diana.core.limit import ConcurrencyLimit, limits_from_spelling
from diana.core.policy import Policy, ResponseSettings, Settings
from diana.core.request import Request
from diana.core.verdict import Verdict
from diana.guard import AsyncGuard, Guard
from diana.responses.denial_response import DenialResponse, Fields, ResponseBuilder
from diana.rules.loading import rules_from_mapping
from diana.slots.acquired_slots import AcquiredSlots
from diana.slots.wait_queue import Timer
from diana.web.admission import MIDDLEWARE, VERDICT, WAITING, Denied, checked_denied, deny_instead
from diana.web.identity_callbacks import Finder, Finders, RequestFunctions, afind, find
from diana.web.request_charges import (
    Admission,
    AnyGuard,
    Charged,
    RouteDenial,
    admission_of,
    see_status,
)

TOO_MANY_REQUESTS = 429
CLASSIC_STATUS = ResponseSettings().status
"""Of a rules file that says nothing else: routes then answer 429."""

DEFAULT_ALGO = "TB"
ANY_LIMIT = "1/minute"
"""Where a function says it: for requests with which the function fails."""

LIMIT_FIELDS = ("rpu", "unit", "most")
"""Fields of a rule that a limit's spelling sets."""

_unnamed = count(1)


class Checked(NamedTuple):
    """What a limit says to a request: a denial to answer with, or header lines for the view's own answer."""

    verdict: Verdict | None
    denial: DenialResponse | None
    fields: Fields
    held: AcquiredSlots | None = None
    """Of a limit such as `5 at once`: the place that it took, to be given back when the answer is sent."""


UNLIMITED = Checked(None, None, [])


def refuse_places(limit: RouteLimit, instead: str) -> None:
    """Where nobody tells when the answer has been sent."""
    if limit.uses_slots:
        raise ConfigError(
            f"this limit counts how many at once, and here nobody tells when the answer has been sent; {instead}"
        )


def refuse_options(options: Mapping[str, Any], refused: Sequence[str], instead: str) -> None:
    """Where the framework answers denied requests itself."""
    for name in refused:
        if options.get(name) is not None:
            raise ConfigError(f"{name}= has no effect here; {instead}")


class _Counting(NamedTuple):
    """A limit at the place where it counts."""

    settings: Settings
    guard: Guard
    aguard: AsyncGuard
    answers: ResponseBuilder
    timer: Timer


class RouteLimit:
    """`limit` is spelled `5/minute`, or several as `5/second; 100/hour`.

    `actor` is spelled as in a rules file (`ip`, `header X-Api-Key`, a list of them), or a function of the framework's request.
    `limit`, `allow` (true: left alone) and `cost` may be functions of it too. If one raises, the request is limited by `base_limit`, is not
    left alone, or is charged 1. `counter` is the name it counts under if there is no `name`: the view's.
    """

    def __init__(
        self,
        limit: str | Callable[[Any], Any],
        *,
        actor: str | Sequence[str] | Finder = "ip",
        allow: Callable[[Any], Any] | None = None,
        status: int | None = None,
        body: str | None = None,
        headers: Sequence[str] | None = None,
        algo: str = DEFAULT_ALGO,
        cost: int | Callable[[Any], Any] = 1,
        missing: str | None = None,
        trusted_proxies: Sequence[str] = (),
        store: str | Store | Client | None = None,
        name: str | None = None,
        counter: str | None = None,
        scope: str | None = None,
        clock: Clock | None = None,
        observers: Sequence[str | Observer] = (),
        denied: Denied | None = None,
        enabled: bool = True,
        base_limit: str | None = None,
        **algorithm_options: Any,
    ) -> None:
        if store is not None and name is None and counter is None:
            raise ConfigError("others count in this store too; give the limit a name=")
        if callable(limit) and name is None:
            raise ConfigError(
                "a limit that is a function has no spelling of its own; give it a name="
            )
        if base_limit is not None and not callable(limit):
            raise ConfigError(
                f"base_limit= is for a limit that is a function, when it fails (got limit {limit!r}); remove it"
            )
        for number in LIMIT_FIELDS:
            if number in algorithm_options:
                raise ConfigError(
                    f"{number}= must not stand beside a limit, which says it already "
                    f"(got {number}={shown(algorithm_options[number])} beside {shown(limit)}); "
                    "write it in the limit, such as 2/hour or 5 at once"
                )
        self.enabled = enabled
        self.functions = RequestFunctions(limit=limit, allow=allow, cost=cost)
        self.denied = checked_denied(denied)
        self.finder = actor if callable(actor) else None
        spelled = "account" if callable(actor) else actor
        self._limit = (base_limit or ANY_LIMIT) if callable(limit) else limit
        self._name = name
        self._named = name is not None or counter is not None
        self._counter = name or counter or f"route {next(_unnamed)}"
        self.uses_slots = any(
            isinstance(one, ConcurrencyLimit) for one in limits_from_spelling(self._limit)
        )
        self._rule = {
            "actor": spelled if isinstance(spelled, str) else list(spelled),
            "algo": algo,
            "cost": 1 if callable(cost) else cost,
            **algorithm_options,
        }
        self._missing, self._scope, self._proxies = missing, scope, trusted_proxies
        self._status, self._headers, self._body = status, headers, body
        self.has_body = body is not None
        self.sees_status = algorithm_options.get("charge_on") is not None
        if self.sees_status:
            see_status()
        self._apart = store is not None or clock is not None or bool(observers)
        policy = self._policy(Settings(), store is not None)
        guard = (
            Guard(policy, store, clock=clock, observers=observers)
            if self._apart
            else Guard.beside(_here(), policy)
        )
        self._own = self._counting(Settings(), guard)
        self._shared: WeakKeyDictionary[Guard | AsyncGuard, _Counting] = WeakKeyDictionary()
        self._lock = Lock()

    @property
    def guard(self) -> AsyncGuard:
        """Where it counts if there is no middleware around."""
        return self._own.aguard

    def check(
        self,
        request: Request,
        asked: Any,
        context: MutableMapping[str, Any],
        finders: Finders | None = None,
    ) -> Checked:
        """Charge the request; `asked` is the framework's own, `context` the environ. A delay is slept here."""
        counting = self._counting_at(context.get(MIDDLEWARE))
        if counting is None:
            return UNLIMITED
        needed = self._needed(counting, request, finders)
        subject = asked if self.finder is not None else request
        request.identities = {kind: find(finder, subject) for kind, finder in needed.items()}
        if self.functions:
            request.found = self.functions.find(asked)
        admission = self._begin(request, context)
        waits = counting.guard.policy.waits
        verdict = (counting.guard.wait if waits else counting.guard.check)(request)
        context[VERDICT] = verdict
        request.detach()
        if not verdict.allowed:
            admission.refund()
            return self._denied(counting, verdict, admission)
        charged = admission.add(self._home(counting, context), verdict)
        held = charged.held = counting.guard.keep_slots(verdict) if verdict.match.holds else None
        if verdict.delay:
            admission.report_wait()
            counting.timer.sleep(verdict.delay)
        return Checked(verdict, None, counting.answers.fields(verdict), held)

    def look(
        self,
        request: Request,
        asked: Any,
        context: MutableMapping[str, Any],
        finders: Finders | None = None,
    ) -> Checked:
        """What `check` would say; nothing is charged. For a framework that calls the limits behind one that has denied, too."""
        counting = self._counting_at(context.get(MIDDLEWARE))
        if counting is None:
            return UNLIMITED
        needed = self._needed(counting, request, finders)
        subject = asked if self.finder is not None else request
        request.identities = {kind: find(finder, subject) for kind, finder in needed.items()}
        if self.functions:
            request.found = self.functions.find(asked)
        verdict = counting.guard.peek(request)
        request.detach()
        return Checked(verdict, None if verdict.allowed else counting.answers.denial(verdict), [])

    async def acheck(
        self,
        request: Request,
        asked: Any,
        context: MutableMapping[str, Any],
        finders: Finders | None = None,
    ) -> Checked:
        """The same for coroutines; `context` is the scope."""
        counting = self._counting_at(context.get(MIDDLEWARE))
        if counting is None:
            return UNLIMITED
        needed = self._needed(counting, request, finders)
        subject = asked if self.finder is not None else request
        request.identities = {kind: await afind(finder, subject) for kind, finder in needed.items()}
        if self.functions:
            request.found = await self.functions.afind(asked)
        admission = self._begin(request, context)
        guard = counting.aguard
        verdict = await (guard.wait if guard.policy.waits else guard.check)(request)
        if verdict.delay and WAITING.is_full:
            await guard.refund(verdict)
            denied = deny_instead(verdict)
            if admission.report is not None:
                admission.report.replace(verdict, denied)
            verdict = denied
        context[VERDICT] = verdict
        request.detach()
        if not verdict.allowed:
            await admission.arefund()
            return self._denied(counting, verdict, admission)
        charged = admission.add(self._home(counting, context), verdict)
        held = charged.held = guard.keep_slots(verdict) if verdict.match.holds else None
        if verdict.delay:
            admission.report_wait()
            await _delay(counting, charged)
        return Checked(verdict, None, counting.answers.fields(verdict), held)

    def _begin(self, request: Request, context: MutableMapping[str, Any]) -> Admission:
        admission = admission_of(context)
        if admission.report is not None:
            request.report = admission.report
        return admission

    def _denied(self, counting: _Counting, verdict: Verdict, admission: Admission) -> Checked:
        denial = counting.answers.denial(verdict)
        if self.denied is None and not self.has_body:
            admission.route_denial = RouteDenial(verdict, denial)
        return Checked(verdict, denial, [])

    def _needed(
        self, counting: _Counting, request: Request, finders: Finders | None
    ) -> dict[str, Finder]:
        if self.finder is not None:
            return {"account": self.finder}
        return finders.needed(counting.guard.policy, request) if finders else {}

    def _counting_at(self, middleware: Any) -> _Counting | None:
        """Where the middleware counts, or here; None if nothing is to be limited."""
        if not self.enabled or (middleware is not None and not middleware.enabled):
            return None
        if middleware is None or self._apart:
            return self._own
        guard = _guard_of(middleware)
        counting = self._shared.get(guard)
        settings = guard.policy.settings
        if counting is None or counting.settings is not settings:
            with self._lock:
                elsewhere = self._named and guard.has_shared_store
                beside = Guard.beside(guard, self._policy(settings, elsewhere))
                counting = self._shared[guard] = self._counting(settings, beside)
        return counting

    def _home(self, counting: _Counting, context: MutableMapping[str, Any]) -> AnyGuard:
        """The guard that opened the stores: it refunds and settles."""
        return counting.guard if counting is self._own else _guard_of(context[MIDDLEWARE])

    def _counting(self, settings: Settings, guard: Guard) -> _Counting:
        policy = guard.policy
        aguard = AsyncGuard.beside(guard, policy)
        return _Counting(settings, guard, aguard, ResponseBuilder(policy), Timer(guard.clock))

    def _policy(self, settings: Settings, elsewhere: bool) -> Policy:
        """A rules file of one block, with all that a file is checked for."""
        rule = {
            **self._rule,
            "missing": self._missing or settings.missing,
            "scope": self._scope or ("global" if elsewhere else "local"),
        }
        limits = limits_from_spelling(self._limit)
        actor = rule["actor"] if isinstance(rule["actor"], str) else " + ".join(rule["actor"])
        rules, shown = [], []
        for limit in limits:
            unit = spelling_from_micros(limit.unit_us)
            numbers: dict[str, Any] = {"rpu": limit.rpu, "unit": unit}
            if isinstance(limit, ConcurrencyLimit):
                unit = AT_ONCE
                algo = rule["algo"] if rule["algo"] != DEFAULT_ALGO else "C"
                numbers = {"most": limit.rpu, "algo": algo}
            several = f" {unit}" if len(limits) > 1 else ""
            rules.append({**rule, **numbers, "name": f"{self._counter}{several}"})
            shown.append(f"{limit} by {actor}" if self._name is None else f"{self._name}{several}")
        identity = {**settings.identity}
        if self._proxies:
            identity["trusted_proxies"] = list(self._proxies)
        document: dict[str, Any] = {
            "namespace": settings.namespace,
            "limits": [{"url": "/", "rules": rules}],
            "response": {"status": self._status_in(settings)},
        }
        if identity:
            document["identity"] = identity
        if self._headers is not None:
            document["response"]["headers"] = list(self._headers)
        if self._body is not None:
            document["response"]["body"] = self._body
        made = rules_from_mapping(document, "RateLimit")
        answer = made.settings.answer
        if self._headers is None:
            answer = replace(answer, headers=settings.answer.headers)
        if self._body is None:
            answer = replace(answer, body=settings.answer.body)
        policy = Policy(
            # Clients are told the limit, not where in the program it stands.
            [replace(rule, name=name) for rule, name in zip(made.rules, shown, strict=True)],
            settings=replace(made.settings, answer=answer),
            version=made.version,
        )
        return self.functions.policy(policy) if self.functions else policy

    def _status_in(self, settings: Settings) -> int:
        if self._status is not None:
            return self._status
        told = settings.answer.status
        return TOO_MANY_REQUESTS if told == CLASSIC_STATUS else told


@cache
def _here() -> Guard:
    """The counters of this process, for limits without a store and without a middleware."""
    return Guard(Policy([]), "memory://")


def _guard_of(middleware: Any) -> AnyGuard:
    guard: AnyGuard = getattr(middleware, "aguard", None) or middleware.guard
    return guard


async def _delay(counting: _Counting, charged: Charged) -> None:
    try:
        with WAITING.place():
            await counting.timer.asleep(charged.verdict.delay)
    except BaseException:
        charged.is_final = True
        await counting.aguard.refund(charged.verdict)
        raise
