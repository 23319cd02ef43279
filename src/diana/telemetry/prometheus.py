"""Counters for Prometheus: `Guard.from_file("diana.yaml", observers=["prometheus"])`.

    diana_requests_total{outcome}          allowed, denied
    diana_decisions_total{rule, outcome}   allowed, denied, shadow_denied; a request is decided by several rules
    diana_degraded_decisions_total{rule}   made here because the store was out of reach
    diana_identity_errors_total{rule}      finding who asks failed; counted as if there were no identity
    diana_store_…_total                    what the store counts: see diana.stores.redis.counts

No label ever holds what a client sent: a client that invents names must not fill the memory of who watches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from diana.core.decision import Decision
from diana.core.request import Request
from diana.core.rule import Rule
from diana.core.verdict import Verdict


class PrometheusObserver:
    """Several guards of one process count together, as Prometheus has one counter of a name."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        metrics = _metrics.get(registry)
        if metrics is None:
            metrics = _metrics[registry] = Metrics(registry)
        self._decisions, self._degraded = metrics.decisions, metrics.degraded
        self._identity_errors = metrics.identity_errors
        self._stores = metrics.stores
        self._told = {
            allowed: metrics.requests.labels("allowed" if allowed else "denied")
            for allowed in (True, False)
        }

    def __call__(self, request: Request, verdict: Verdict) -> None:  # noqa: ARG002
        self._told[verdict.allowed].inc()
        for rule, decision in zip(verdict.rules, verdict.decisions, strict=True):
            self._decisions.labels(rule.name, _outcome(rule, decision)).inc()
            if decision.degraded:
                self._degraded.labels(rule.name).inc()
        for name in verdict.identity_errors:
            self._identity_errors.labels(name).inc()

    def watch(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """The store's own counters, read when they are asked for."""
        self._stores.append(counts)


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
        self.stores: list[Callable[[], Mapping[str, int]]] = []
        registry.register(_StoreCounters(self.stores))


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
            yield CounterMetricFamily(f"diana_store_{name}", f"Of the store: {said}.", value=number)


_metrics: WeakKeyDictionary[CollectorRegistry, Metrics] = WeakKeyDictionary()


def _outcome(rule: Rule, decision: Decision) -> str:
    if decision:
        return "allowed"
    return "denied" if rule.mode == "enforce" else "shadow_denied"
