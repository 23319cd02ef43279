"""Rules of both scopes with a real store: who is asked when, and what comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from diana import AsyncGuard, Guard, Policy, Request, Verdict
from diana.rules.loading import rules_from_bytes
from diana.stores.redis.store import RedisStore
from diana.testing import FakeClock
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.counting import PATIENT_US, acquisitions

BEGIN_US = 1_700_000_000_000_000
MIXED = """
url: /
rules:
  - {name: fleet, unit: minute, rpu: 4, scope: global}
  - {name: here, actor: device, unit: minute, rpu: 2, scope: local}
  - {name: fleet too, actor: device, unit: hour, rpu: 3, algo: SW, scope: global}
"""


@pytest.fixture(autouse=True)
def empty(redis7: Server) -> None:
    redis7.ask("FLUSHALL")


@pytest.fixture
def store(redis7: Server) -> Iterator[RedisStore]:
    store = RedisStore.from_url(redis7.url, budget_us=PATIENT_US)
    yield store
    store.close()


def policy(text: str) -> Policy:
    return rules_from_bytes(text.encode())


def device(name: str) -> Request:
    return Request("GET", "/", {"X-Device-Id": name})


def check_all(text: str, store: RedisStore, requests: list[Request], shell: type) -> list[Verdict]:
    clock = FakeClock(BEGIN_US)
    if shell is Guard:
        guard = Guard(policy(text), store, clock=clock)
        return [guard.check(request) for request in requests]

    async def check() -> list[Verdict]:
        guard = AsyncGuard(policy(text), store, clock=clock)
        return [await guard.check(request) for request in requests]

    return asyncio.run(check())


both_shells = pytest.mark.parametrize("shell", [Guard, AsyncGuard])


@both_shells
def test_local_rules_are_asked_first_and_their_denial_costs_no_trip(
    shell: type, store: RedisStore, redis7: Server
) -> None:
    with acquisitions(redis7) as asked:
        verdicts = check_all(MIXED, store, [device("a")] * 10, shell)
    assert [verdict.allowed for verdict in verdicts] == [True] * 2 + [False] * 8
    assert {verdict.denied_by.name for verdict in verdicts if verdict.denied_by} == {"here"}
    assert len(asked) == 2, "both global rules are one command, and the denied ask none"
    assert not any(one.degraded for verdict in verdicts for one in verdict.decisions)


@both_shells
def test_a_request_that_no_rule_covers_costs_no_trip(shell: type, store: RedisStore) -> None:
    only_global = "url: /api\nrules: [{unit: minute, rpu: 4, scope: global}]"
    (verdict,) = check_all(only_global, store, [Request("GET", "/healthz")], shell)
    assert verdict.allowed
    assert verdict.decisions == ()
    assert store.counts()["trips"] == 0


@both_shells
def test_a_global_denial_gives_the_local_charge_back(shell: type, store: RedisStore) -> None:
    requests = [device(name) for name in ("a", "a", "b", "b", "c")]
    *passed, denied = check_all(MIXED, store, requests, shell)
    assert all(passed)
    assert denied.denied_by is not None
    assert denied.denied_by.name == "fleet"
    said = dict(zip((rule.name for rule in denied.rules), denied.decisions, strict=True))
    assert (said["here"].allowed, said["here"].remaining) == (True, 2)
    assert (said["fleet too"].allowed, said["fleet too"].remaining) == (True, 3)


@both_shells
def test_a_global_rule_in_the_shadow_counts_what_passed_and_denies_nobody(
    shell: type, store: RedisStore
) -> None:
    text = """
    url: /
    rules:
      - {name: enforced, unit: minute, rpu: 3, scope: global}
      - {name: shadow, unit: hour, rpu: 1, scope: global, mode: shadow}
    """
    verdicts = check_all(text, store, [Request()] * 5, shell)
    assert [verdict.allowed for verdict in verdicts] == [True] * 3 + [False] * 2
    said = [
        decision.allowed
        for verdict in verdicts
        for rule, decision in zip(verdict.rules, verdict.decisions, strict=True)
        if rule.name == "shadow"
    ]
    assert said == [True, False, False], "who was denied is not counted in the shadow"


def test_two_guards_share_the_global_count_and_not_the_local(
    redis7: Server, store: RedisStore
) -> None:
    clock = FakeClock(BEGIN_US)
    first, second = (Guard(policy(MIXED), store, clock=clock) for _ in range(2))
    assert [bool(first.check(device("a"))) for _ in range(3)] == [True, True, False]
    verdicts = [second.check(device("a")) for _ in range(2)]
    assert [verdict.allowed for verdict in verdicts] == [True, False]
    assert verdicts[1].denied_by is not None
    assert verdicts[1].denied_by.name == "fleet too"
    first.refund(verdicts[0])
    assert second.check(device("a"))


def test_the_settings_of_the_file_reach_the_store(redis7: Server) -> None:
    text = f"""
    store: {redis7.url}
    store_budget: 3s
    namespace: shop
    nodes: 4
    limits: [{{url: /, rules: [{{name: fleet, unit: minute, rpu: 8, scope: global}}]}}]
    """
    guard = Guard(policy(text))
    shared = guard._evaluator.shared
    assert isinstance(shared, RedisStore)
    assert (shared.budget, shared.namespace) == (3.0, "shop")
    assert guard.check(Request())
    until(lambda: redis7.ask("EXISTS", "shop:script:acquire"), "scripts are published there")
    assert all(key.startswith((b"shop:", b"{shop:")) for key in redis7.ask("KEYS", "*"))
    guard.close()


def test_nodes_is_how_many_share_a_limit_while_that_is_not_known() -> None:
    with Server(REDIS_7) as server:
        text = f"""
        store: {server.url}
        nodes: 4
        limits: [{{url: /, rules: [{{unit: minute, rpu: 8, scope: global}}]}}]
        """
        server.kill()
        guard = Guard(policy(text), clock=FakeClock(BEGIN_US))
        verdicts = [guard.check(Request()) for _ in range(8)]
        assert sum(verdict.allowed for verdict in verdicts) == 2
        assert all(verdict.decisions[0].degraded for verdict in verdicts)
        guard.close()


@pytest.mark.parametrize(("when_down", "passing"), [("local", 2), ("open", 4), ("closed", 0)])
def test_each_rule_does_what_its_when_down_says(when_down: str, passing: int) -> None:
    with Server(REDIS_7) as server:
        rule = f"{{unit: minute, rpu: 2, scope: global, when_down: {when_down}}}"
        text = f"store: {server.url}\nlimits: [{{url: /, rules: [{rule}]}}]"
        server.kill()
        guard = Guard(policy(text), clock=FakeClock(BEGIN_US))
        assert [bool(guard.check(Request())) for _ in range(4)] == [
            number < passing for number in range(4)
        ]
        guard.close()


def test_the_environment_names_the_store(
    redis7: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DIANA_STORE", redis7.url)
    settings = "store: redis://nowhere.invalid\nstore_budget: 10s"
    guard = Guard(policy(f"{settings}\nlimits: [{_flow(MIXED)}]"))
    assert guard.check(device("a"))
    guard.close()
    assert redis7.ask("KEYS", "diana:*|TB|minute|*") != []
    assert caplog.messages == []


def test_without_a_store_it_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIANA_STORE", raising=False)
    with caplog.at_level(logging.WARNING, "diana"):
        guard = Guard(policy(MIXED), clock=FakeClock(BEGIN_US))
        assert [bool(guard.check(device("a"))) for _ in range(3)] == [True, True, False]
    assert caplog.messages == [
        "no store is set, so rules of scope global count on this machine only"
    ]


def _flow(block: str) -> str:
    """A block of rules in one line."""
    url, _, rules = block.strip().partition("\nrules:\n")
    listed = ", ".join(line.strip().removeprefix("- ") for line in rules.splitlines())
    return f"{{{url}, rules: [{listed}]}}"
