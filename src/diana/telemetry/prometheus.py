"""Counters for Prometheus: `Guard.from_file("diana.yaml", observers=["prometheus"])`.

    diana_requests_total{outcome}          allowed, denied, shed
    diana_decisions_total{rule, outcome}   allowed, denied, shadow_denied; a request is decided by several rules
    diana_degraded_decisions_total{rule}   made here because the store was out of reach
    diana_identity_errors_total{rule}      finding who asks failed; counted as if there were no identity
    diana_function_errors_total{rule, function}   a cost=, limit= or allow= in code failed; decided as if it were not there
    diana_shed_requests_total{factor, level}   rejected because of load; level counts from 1
    diana_shed_factor_value{factor}        smoothed, as it is now; absent while it cannot be measured
    diana_shed_factor_level{factor}        the level that it is at; 0 is none
    diana_expired_slots_total             places that ran off while their request still ran: one more may have been inside than `most` says
    diana_store_…_total                    what the store counts: see diana.stores.redis.store_metrics

`rule` is the rule's name. Where a name alone does not tell two rules apart, it says more: `a (minute)` and `a (hour)`; and of a limit on
a route, which has no name of its own, the view: `shop.views.login: 5/minute by ip`.

No label ever holds what a client sent: a client that invents names must not fill the memory of who watches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from diana.core.decision import Decision
from diana.core.request import Request
from diana.core.rule import Rule
from diana.core.verdict import Verdict

EXPIRED = "expired_slots"


class PrometheusObserver:
    """Several guards of one process count together, as Prometheus has one counter of a name."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        metrics = _metrics.get(registry)
        if metrics is None:
            metrics = _metrics[registry] = Metrics(registry)
        self._decisions, self._degraded = metrics.decisions, metrics.degraded
        self._identity_errors = metrics.identity_errors
        self._function_errors = metrics.function_errors
        self._stores = metrics.stores
        self._shed, self._factors = metrics.shed, metrics.factors
        self._told = {
            allowed: metrics.requests.labels("allowed" if allowed else "denied")
            for allowed in (True, False)
        }
        self._told_shed = metrics.requests.labels("shed")
        self._metrics = metrics

    def __eq__(self, other: object) -> bool:
        """Two of one registry count the same, so a request that both observe is counted once."""
        return isinstance(other, PrometheusObserver) and other._metrics is self._metrics

    def __hash__(self) -> int:
        return id(self._metrics)

    def __call__(self, request: Request, verdict: Verdict) -> None:  # noqa: ARG002
        if verdict.shed is not None:
            self._told_shed.inc()
            self._shed.labels(verdict.shed.factor, verdict.shed.level).inc()
            return
        self._told[verdict.allowed].inc()
        for rule, decision in zip(verdict.rules, verdict.decisions, strict=True):
            label = rule.distinct_name
            self._decisions.labels(label, _outcome(rule, decision)).inc()
            if decision.degraded:
                self._degraded.labels(label).inc()
        for name in verdict.identity_errors:
            self._identity_errors.labels(name).inc()
        for name, function in verdict.function_errors:
            self._function_errors.labels(name, function).inc()

    def watch(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """The store's own counters, read when they are asked for."""
        self._stores.append(counts)

    def watch_factors(self, states: Callable[[], Sequence[FactorState]]) -> None:
        """The factors of load shedding, read when they are asked for."""
        self._factors.append(states)


class FactorState(Protocol):
    """What a guard tells of a factor."""

    @property
    def factor(self) -> str: ...
    @property
    def smoothed(self) -> float | None: ...
    @property
    def level(self) -> int: ...


States = Callable[[], Sequence[FactorState]]


class Metrics:
    """The counters in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "diana_requests", "Requests by what they were told.", ["outcome"], registry=registry
        )
        self.decisions = Counter(
            "diana_decisions",
            "Decisions by rule and outcome.",
            ["rule", "outcome"],
            registry=registry,
        )
        self.degraded = Counter(
            "diana_degraded_decisions",
            "Decisions made here because the store was out of reach.",
            ["rule"],
            registry=registry,
        )
        self.identity_errors = Counter(
            "diana_identity_errors",
            "Requests whose identity could not be found out, because finding it failed.",
            ["rule"],
            registry=registry,
        )
        self.function_errors = Counter(
            "diana_function_errors",
            "Functions of the application that failed while a request was checked.",
            ["rule", "function"],
            registry=registry,
        )
        self.stores: list[Callable[[], Mapping[str, int]]] = []
        registry.register(_StoreCounters(self.stores))
        self.shed = Counter(
            "diana_shed_requests",
            "Requests that were rejected because of load.",
            ["factor", "level"],
            registry=registry,
        )
        self.factors: list[States] = []
        registry.register(_FactorGauges(self.factors))


class _StoreCounters(Collector):
    def __init__(self, stores: list[Callable[[], Mapping[str, int]]]) -> None:
        self._stores = stores

    def collect(self) -> Iterator[CounterMetricFamily]:
        together: dict[str, int] = {}
        for counts in self._stores:
            for name, number in counts().items():
                together[name] = together.get(name, 0) + number
        for name, number in together.items():
            said = name.replace("_", " ")
            if name == EXPIRED:
                whole, said = f"diana_{name}", "Places that ran off while their request still ran."
            else:
                whole, said = f"diana_store_{name}", f"Of the store: {said}."
            yield CounterMetricFamily(whole, said, value=number)


class _FactorGauges(Collector):
    """Of several guards in a process, the worst."""

    def __init__(self, factors: list[States]) -> None:
        self._factors = factors

    def collect(self) -> Iterator[GaugeMetricFamily]:
        value = GaugeMetricFamily(
            "diana_shed_factor_value", "A factor of load shedding, smoothed.", labels=["factor"]
        )
        level = GaugeMetricFamily(
            "diana_shed_factor_level", "The level that a factor is at; 0: none.", labels=["factor"]
        )
        values: dict[str, float] = {}
        levels: dict[str, int] = {}
        for states in self._factors:
            for state in states():
                levels[state.factor] = max(levels.get(state.factor, 0), state.level)
                if state.smoothed is not None:
                    values[state.factor] = max(values.get(state.factor, 0.0), state.smoothed)
        for factor, smoothed in values.items():
            value.add_metric([factor], smoothed)
        for factor, number in levels.items():
            level.add_metric([factor], number)
        yield value
        yield level


_metrics: WeakKeyDictionary[CollectorRegistry, Metrics] = WeakKeyDictionary()


def _outcome(rule: Rule, decision: Decision) -> str:
    if decision:
        return "allowed"
    return "denied" if rule.mode == "enforce" else "shadow_denied"
