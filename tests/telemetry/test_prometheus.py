"""Counters for Prometheus: requests, decisions, what was degraded, and what the store counts."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from weakref import ref

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from diana import Guard, Request
from diana.core.shed_settings import Level
from diana.rules.loading import rules_from_bytes
from diana.telemetry.prometheus import PrometheusObserver
from diana.testing import FakeClock
from diana.web.route_limit import RouteLimit
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.shedding.lines import Dial, at_level, line, policy

RULES = """
store: {store}
limits:
  - url: /
    rules:
      - {{name: fleet, unit: minute, rpu: 3, scope: global}}
      - {{name: here, unit: minute, rpu: 100, scope: local}}
      - {{name: later, unit: minute, rpu: 1, scope: local, mode: shadow}}
"""


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def watched(store: str, registry: CollectorRegistry) -> Guard:
    observer = PrometheusObserver(registry)
    policy = rules_from_bytes(RULES.format(store=store).encode())
    return Guard(policy, clock=FakeClock(1_700_000_000_000_000), observers=[observer])


def test_requests_and_decisions_by_rule(registry: CollectorRegistry, redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    guard = watched(f"{redis7.url}?budget=5s", registry)
    for _ in range(5):
        guard.check(Request(headers={"X-Device-Id": "SECRET"}))
    guard.close()
    value = registry.get_sample_value
    assert value("diana_requests_total", {"outcome": "allowed"}) == 3
    assert value("diana_requests_total", {"outcome": "denied"}) == 2
    by_rule = {
        ("fleet", "allowed"): 3,
        ("fleet", "denied"): 2,
        ("here", "allowed"): 5,
        ("later", "allowed"): 1,
        ("later", "shadow_denied"): 2,
    }
    for (rule, outcome), count in by_rule.items():
        assert value("diana_decisions_total", {"rule": rule, "outcome": outcome}) == count
    assert value("diana_degraded_decisions_total", {"rule": "fleet"}) is None
    assert b"SECRET" not in generate_latest(registry), "a client could fill the memory"


def test_what_the_store_counts(registry: CollectorRegistry, redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    guard = watched(f"{redis7.url}?budget=5s", registry)
    for _ in range(10):
        guard.check(Request())
    counts = {
        name: registry.get_sample_value(f"diana_store_{name}_total")
        for name in ("decisions", "trips", "deny_cache_hits", "degraded", "breaker_opened")
    }
    guard.close()
    assert counts == {
        "decisions": 10,
        "trips": 4,
        "deny_cache_hits": 6,
        "degraded": 0,
        "breaker_opened": 0,
    }


def test_a_closed_guard_is_not_kept_and_its_numbers_stay(
    registry: CollectorRegistry, redis7: Server
) -> None:
    observer = PrometheusObserver(registry)
    text = b"limits: [{url: /, rules: [{unit: hour, rpu: 100, scope: global}]}]"
    stores = []
    for _ in range(3):
        guard = Guard(rules_from_bytes(text), f"{redis7.url}?budget=5s", observers=[observer])
        guard.check(Request())
        stores.append(ref(guard._evaluator.shared))
        guard.close()
        del guard
    gc.collect()
    assert [store() for store in stores] == [None] * 3
    assert registry.get_sample_value("diana_store_decisions_total") == 3


def test_a_lost_store_is_seen(registry: CollectorRegistry) -> None:
    value = registry.get_sample_value
    with Server(REDIS_7) as server:
        guard = watched(f"{server.url}?budget=5s", registry)
        assert guard.check(Request())
        server.kill()
        until(lambda: guard.check(Request()).decisions[0].degraded, "it is lost")
        until(lambda: value("diana_store_breaker_opened_total") == 1, "the breaker is open")
        assert guard.check(Request()).decisions[0].degraded, "and what is not sent is charged later"
        degraded = value("diana_degraded_decisions_total", {"rule": "fleet"})
        assert degraded is not None
        assert degraded >= 1
        assert value("diana_store_degraded_total") == degraded
        server.restart()
        until(lambda: value("diana_store_breaker_closed_total") == 1, "it is back")
        until(lambda: value("diana_store_settled_total"), "what was admitted here is charged")
        guard.close()


BY_NAME = """
import sys
from prometheus_client import REGISTRY
from diana import Guard, Request
guard = Guard.from_file(sys.argv[1], observers=["prometheus"])
guard.check(Request())
guard.close()
print(REGISTRY.get_sample_value("diana_requests_total", {"outcome": "allowed"}))
print(REGISTRY.get_sample_value("diana_store_decisions_total"))
"""


def test_by_name_it_counts_in_the_registry_of_all(redis7: Server, tmp_path: Path) -> None:
    redis7.ask("FLUSHALL")
    rules = tmp_path / "diana.yaml"
    rules.write_text(RULES.format(store=f"{redis7.url}?budget=5s"))
    ran = subprocess.run(
        [sys.executable, "-c", BY_NAME, str(rules)], capture_output=True, text=True
    )
    assert list(map(float, ran.stdout.split())) == [1, 1], ran.stderr


def test_identities_that_could_not_be_found(registry: CollectorRegistry) -> None:
    policy = rules_from_bytes(
        b"url: /\nrules: [{name: you, actor: account, unit: minute, rpu: 9}, {unit: hour, rpu: 99}]"
    )
    guard = Guard(policy, clock=FakeClock(), observers=[PrometheusObserver(registry)])
    for failed in (LookupError("no session"), None, "alice"):
        request = Request()
        request.identities = {"account": failed}
        verdict = guard.check(request)
        assert dict(verdict.identity_errors) == (
            {"you": failed} if failed.__class__ is LookupError else {}
        )
    guard.close()
    assert registry.get_sample_value("diana_identity_errors_total", {"rule": "you"}) == 1


def test_what_was_shed_and_the_factors_as_they_are(registry: CollectorRegistry) -> None:
    fixed, gone = Dial(92.0), Dial(None)
    shed = line(fixed, (Level(80, 10), Level(90, 100)))
    guard = Guard(policy(shed, line(gone, name="gone")), observers=[PrometheusObserver(registry)])
    at_level(guard, 2)
    value = registry.get_sample_value
    allowed = value("diana_requests_total", {"outcome": "allowed"}) or 0
    for _ in range(7):
        assert not guard.check(Request())
    assert value("diana_requests_total", {"outcome": "shed"}) == 7
    assert value("diana_requests_total", {"outcome": "denied"}) == 0
    assert value("diana_requests_total", {"outcome": "allowed"}) == allowed
    assert value("diana_shed_requests_total", {"factor": "dial", "level": "2"}) == 7
    assert value("diana_shed_factor_value", {"factor": "dial"}) == 92.0
    assert value("diana_shed_factor_level", {"factor": "dial"}) == 2
    assert value("diana_shed_factor_value", {"factor": "gone"}) is None
    assert value("diana_shed_factor_level", {"factor": "gone"}) == 0
    guard.close()
    assert value("diana_shed_factor_value", {"factor": "dial"}) is None


def decisions_by_rule(registry: CollectorRegistry) -> dict[str, float]:
    return {
        sample.labels["rule"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "diana_decisions_total" and sample.labels["outcome"] == "allowed"
    }


@pytest.mark.parametrize(
    ("rules", "labels"),
    [
        ("{name: a, unit: minute, rpu: 9}, {name: b, unit: hour, rpu: 9}", ["a", "b"]),
        (
            "{name: a, unit: minute, rpu: 9}, {name: a, unit: hour, rpu: 9}, {name: b, unit: hour, rpu: 9}",
            ["a (minute)", "a (hour)", "b"],
        ),
        (
            "{name: a, unit: minute, rpu: 9, actor: ip}, {name: a, unit: minute, rpu: 9}",
            ["a (ip)", "a (all)"],
        ),
        (
            "{name: a, unit: minute, rpu: 9}, {name: a, unit: hour, rpu: 9}, {name: a, unit: hour, rpu: 9, algo: W}",
            ["a (minute, TB)", "a (hour, TB)", "a (hour, W)"],
        ),
        (
            "{name: a, unit: hour, rpu: 9, algo: SW}, {name: a, unit: hour, rpu: 9, algo: SW, slices: 5}",
            ["a (slices 10)", "a (slices 5)"],
        ),
    ],
)
def test_rules_of_one_name_are_told_apart(
    rules: str, labels: list[str], registry: CollectorRegistry
) -> None:
    policy = rules_from_bytes(f"limits: [{{url: /, rules: [{rules}]}}]".encode())
    guard = Guard(policy, observers=[PrometheusObserver(registry)])
    guard.check(Request(peer="192.0.2.1"))
    assert decisions_by_rule(registry) == dict.fromkeys(labels, 1)


def test_limits_of_routes_are_told_apart_by_their_views(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    for view, count in (("shop.login", 2), ("shop.search", 1)):
        limit = RouteLimit("5/minute", counter=view, observers=[observer])
        for _ in range(count):
            limit.check(Request(peer="192.0.2.1"), None, {})
    named = RouteLimit("5/minute", name="logins", observers=[observer])
    named.check(Request(peer="192.0.2.1"), None, {})
    assert decisions_by_rule(registry) == {
        "shop.login: 5/minute by ip": 2,
        "shop.search: 5/minute by ip": 1,
        "logins": 1,
    }


def test_an_identity_error_has_its_rules_label(registry: CollectorRegistry) -> None:
    def actor(_: object) -> str:
        raise ValueError

    limit = RouteLimit(
        "5/minute", actor=actor, counter="shop.login", observers=[PrometheusObserver(registry)]
    )
    limit.check(Request(peer="192.0.2.1"), None, {})
    label = {"rule": "shop.login: 5/minute by account"}
    assert registry.get_sample_value("diana_identity_errors_total", label) == 1
