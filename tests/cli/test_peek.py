"""`peek`, `unblock` and `reset` of rules with tiers, costs and overrides, of rules of one name, and in zones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from diana import Guard, Request
from diana.cli.main import diana
from diana.core.limit_adjustments import Override
from diana.redis_client.redis_url import address_from_url
from diana.redis_client.time_budget import Budget
from diana.redis_client.topology import find_server
from diana.rules.loading import rules_from_bytes
from diana.stores.redis.maintenance.overrides_refresh import write_override
from diana.web.route_limit import RouteLimit
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.shared.zones import zone_name

RULES = """
namespace: shop
identity: {account: header X-Account-Id, tier: header X-Tier, trust_tier: true}
limits:
  - url: /api
    rules:
      - {name: plan, actor: account, unit: hour, rpu: {free: 3, pro: 6, else: 2}, scope: global}
      - {name: special, actor: account, unit: hour, rpu: 100, scope: global, overrides: {alice: {rpu: 3}}}
      - {name: twice, actor: account, unit: minute, rpu: 100, scope: global}
      - {name: twice, actor: account, unit: hour, rpu: 200, scope: global}
  - url: /other
    rules: [{name: at once, actor: account, algo: C, most: 2, scope: global}]
  - url: /dear
    rules: [{name: dear, actor: account, unit: hour, rpu: 5, cost: 2, algo: W, scope: global}]
"""


def run(*arguments: str, **environment: str | None) -> Result:
    return CliRunner().invoke(diana, arguments, env=environment)


def said(*arguments: str, **environment: str | None) -> str:
    result = run(*arguments, **environment)
    assert result.exit_code == 0, result.output
    return result.output


def told(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(*arguments, "--format", "json"))
    return found


def request(account: str = "bob", tier: str = "pro", path: str = "/api") -> Request:
    return Request("POST", path, {"X-Account-Id": account, "X-Tier": tier}, peer="203.0.113.9")


@contextmanager
def counting(server: Server, rules: Path) -> Iterator[Guard]:
    server.ask("FLUSHALL")
    guard = Guard.from_file(rules, f"{server.url}?budget=10s")
    try:
        yield guard
    finally:
        guard.close()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "diana.yaml"
    file.write_text(RULES)
    return file


@pytest.fixture
def guard(redis7: Server, rules: Path) -> Iterator[Guard]:
    with counting(redis7, rules) as guard:
        for path in ("/api", "/other", "/dear"):
            guard.check(request("another client", path=path))
        until(lambda: len(redis7.ask("KEYS", "shop:rule:*")) == 6, "all rules are published")
        yield guard


@pytest.fixture(params=["published", "file"])
def source(request: pytest.FixtureRequest, rules: Path) -> list[str]:
    """Where the rule comes from: what nodes have published, or the rules file."""
    if request.param == "file":
        return ["--rules", str(rules)]
    return ["--namespace", "shop"]


def test_a_rule_with_tiers_is_not_judged_by_one_of_them(
    redis7: Server, guard: Guard, source: list[str]
) -> None:
    for _ in range(3):
        assert guard.check(request())
    arguments = [redis7.url, "plan", "bob", *source]
    lines = said("peek", *arguments).splitlines()
    assert lines[0] == f"store   namespace 'shop' of {redis7.url}"
    assert lines[1] == "rule    plan, by account, for /api"
    assert "--tier NAME" in lines[3]
    assert lines[4].startswith("  free  3/hour  ✗ denied, retry after ")
    assert lines[5] == "  pro   6/hour  ✓ 3 of 6 left"
    assert lines[6].startswith("  else  2/hour  ✗ denied, retry after ")
    found = told("peek", *arguments)
    assert (found["allowed"], found["remaining"], found["tier"]) == (None, None, None)
    assert [(one["tier"], one["allowed"]) for one in found["tiers"]] == [
        ("free", False),
        ("pro", True),
        ("else", False),
    ]


def test_peek_by_tier(redis7: Server, guard: Guard, source: list[str]) -> None:
    for _ in range(3):
        assert guard.check(request())
    arguments = [redis7.url, "plan", "bob", *source]
    text = said("peek", *arguments, "--tier", "pro")
    assert "limit   6/hour, tier pro\nsays    ✓ 3 of 6 left\n" in text
    assert "limit   2/hour, tier else\nsays    ✗ denied" in said(
        "peek", *arguments, "--tier", "else"
    )
    wrong = run("peek", *arguments, "--tier", "gold")
    assert wrong.exit_code == 2
    assert "no tier 'gold'; write one of free, pro, else" in wrong.output
    wrong = run("peek", redis7.url, "dear", "bob", *source, "--tier", "pro")
    assert "rule 'dear' has no tiers; remove --tier" in wrong.output


def test_unblock_never_resets_a_client_that_is_not_denied_under_its_tier(
    redis7: Server, guard: Guard, source: list[str]
) -> None:
    for _ in range(3):
        assert guard.check(request())
    arguments = [redis7.url, "plan", "bob", *source]
    unsaid = run("unblock", *arguments)
    assert unsaid.exit_code == 2
    assert "denied under free, else, not denied under pro; nothing was changed" in unsaid.output
    assert "--tier NAME" in unsaid.output
    assert said("unblock", *arguments, "--tier", "pro") == (
        "plan: not denied under 6/hour (tier pro), 3 left; nothing was changed\n"
    )
    assert guard.peek(request()).decisions[0].remaining == 2, "nothing was reset"
    assert said("unblock", *arguments, "--tier", "free").startswith(
        "plan: unblocked; under 3/hour (tier free) it was denied for another "
    )
    assert "not denied under any tier; nothing was changed" in said("unblock", *arguments)
    for _ in range(6):
        assert guard.check(request())
    assert "plan: unblocked; under every tier" in said("unblock", *arguments)


def test_a_look_costs_what_the_rule_costs(redis7: Server, guard: Guard, source: list[str]) -> None:
    """5 an hour, each request costs 2: one is left, and every request is denied."""
    for _ in range(2):
        assert guard.check(request(path="/dear"))
    assert not guard.check(request(path="/dear"))
    arguments = [redis7.url, "dear", "bob", *source]
    text = said("peek", *arguments)
    assert "cost    2\nlimit   5/hour\nsays    ✗ denied, retry after " in text
    assert told("peek", *arguments)["remaining"] == 1
    assert "dear: unblocked; under 5/hour" in said("unblock", *arguments)
    assert told("peek", *arguments)["remaining"] == 5
    assert told("peek", *arguments)["reset_after"] == 0


def test_an_override_under_which_the_cost_never_passes_is_refused(
    redis7: Server, guard: Guard, source: list[str]
) -> None:
    result = run("override", redis7.url, "dear", "bob", *source, "--rpu", "1")
    assert result.exit_code == 1
    assert "the rule's cost 2 can never pass: the most is 1; write more" in result.output
    assert not redis7.ask("EXISTS", "shop:{overrides}")


def test_overrides_of_the_rules_file(redis7: Server, guard: Guard, source: list[str]) -> None:
    for _ in range(2):
        assert guard.check(request("alice"))
    arguments = [redis7.url, "special", "alice", *source]
    text = said("peek", *arguments)
    assert "limit   3/hour, an override of the rules file\nsays    ✓ 1 of 3 left" in text
    assert "✓ 100 of 100 left" in said("peek", redis7.url, "special", "nobody", *source)
    # An override of the store wins.
    said("override", redis7.url, "special", "alice", "--rpu", "9", *source)
    assert "limit   9/hour, an override\nsays    ✓ 7 of 9 left" in said("peek", *arguments)
    said("override", redis7.url, "special", "alice", "--remove", *source)
    until(lambda: guard.peek(request("alice")).decisions[1].limit == 3, "it is removed")
    assert guard.check(request("alice"))
    assert "special: unblocked; under 3/hour" in said("unblock", *arguments)


def test_rules_of_one_name(redis7: Server, guard: Guard, source: list[str]) -> None:
    guard.check(request("carol"))
    for verb in ("peek", "reset", "unblock", "override"):
        numbers = ["--rpu", "9"] if verb == "override" else []
        result = run(verb, redis7.url, "twice", "carol", *source, *numbers)
        assert result.exit_code == 2, result.output
        assert "2 rules have the name 'twice'; write one of\n" in result.output
        listed = result.output.splitlines()
        assert (
            "  'twice (minute)', or twice --unit minute: 100/minute by account, TB, global, for /api"
            in listed
        )
        assert (
            "  'twice (hour)', or twice --unit hour: 200/hour by account, TB, global, for /api"
            in listed
        )
    by_minute = ["peek", redis7.url, "twice", "carol", *source, "--unit", "60s"]
    assert "limit   100/minute\n" in said(*by_minute)
    assert "limit   200/hour\n" in said(*by_minute[:-1], "hour")
    none = run(*by_minute[:-1], "day")
    assert none.exit_code == 2
    assert "no rule 'twice' has --unit day; there is\n" in none.output


def test_rules_of_one_name_by_the_name_that_metrics_use(
    redis7: Server, guard: Guard, source: list[str]
) -> None:
    guard.check(request("carol"))
    by_hour = [redis7.url, "twice (hour)", "carol", *source]
    text = said("peek", *by_hour)
    assert "rule    twice (hour), by account, for /api\n" in text
    assert "limit   200/hour\nsays    ✓ 199 of 200 left\n" in text
    assert told("peek", *by_hour)["rule"] == "twice (hour)"
    assert said("reset", *by_hour) == "twice (hour): forgotten\n"
    assert "✓ 99 of 100 left" in said("peek", redis7.url, "twice (minute)", "carol", *source)
    assert "twice (hour): 9/hour for carol" in said("override", *by_hour, "--rpu", "9")
    carol = request("carol")
    until(lambda: [one.limit for one in guard.peek(carol).decisions][2:] == [100, 9], "it is heard")
    assert "limit   9/hour, an override\n" in said("peek", *by_hour)
    assert "limit   100/minute\n" in said("peek", redis7.url, "twice (minute)", "carol", *source)
    assert said("override", *by_hour, "--remove") == "twice (hour): removed\n"
    assert said("override", *by_hour, "--remove") == "twice (hour): there was no override\n"
    until(lambda: [one.limit for one in guard.peek(carol).decisions][2:] == [100, 200], "again")


def test_an_override_under_a_name_that_became_shared_can_be_removed(
    redis7: Server, guard: Guard, source: list[str]
) -> None:
    carol, by_hour = request("carol"), [redis7.url, "twice (hour)", "carol", *source]
    key = told("peek", *by_hour)["key"]
    with find_server(address_from_url(redis7.url), b"x") as server:
        server.exchange(write_override("shop", "twice", key, Override(9)), Budget(10))
    until(lambda: [one.limit for one in guard.peek(carol).decisions][2:] == [9, 9], "it is heard")
    assert "limit   9/hour, an override\n" in said("peek", *by_hour)
    assert said("override", *by_hour, "--remove") == "twice (hour): removed\n"
    assert "limit   200/hour\n" in said("peek", *by_hour)


def test_limits_of_routes_are_found_by_what_clients_see(redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    url = f"{redis7.url}?budget=10s"
    views = [RouteLimit("5/minute", counter=f"app.{view}", store=url) for view in ("a", "b")]
    for view in views:
        assert view.check(request(), None, {}).denial is None
    until(lambda: len(redis7.ask("KEYS", "diana:rule:*")) == 2, "both are published")
    result = run("peek", redis7.url, "5/minute by ip", "203.0.113.9")
    assert result.exit_code == 2, result.output
    for name in ("app.a", "app.b"):
        assert f"  '{name}: 5/minute by ip': 5/minute by ip, TB, global, for /\n" in result.output
    text = said("peek", redis7.url, "app.a: 5/minute by ip", "203.0.113.9")
    assert "rule    app.a: 5/minute by ip, by ip" in text
    assert "✓ 4 of 5 left" in text
    asyncio.run(_close(views))


async def _close(views: list[RouteLimit]) -> None:
    for view in views:
        await view.guard.close()


def test_what_is_left_after_no_request(redis7: Server, guard: Guard, source: list[str]) -> None:
    """50 may pass and one has: 49 are left, whatever algorithm counts."""
    found = told("peek", redis7.url, "at once", "nobody", *source)
    assert (found["allowed"], found["remaining"], found["reset_after"]) == (True, 2, 0)
    assert guard.check(request("dave", path="/other"))
    found = told("peek", redis7.url, "at once", "dave", *source)
    assert (found["limit"], found["remaining"]) == ("2 at once", 1)
    assert guard.check(request("dave", path="/other"))
    assert "✗ denied, all slots are taken" in said("peek", redis7.url, "at once", "dave", *source)
    assert "at once: unblocked" in said("unblock", redis7.url, "at once", "dave", *source)


@pytest.mark.parametrize("algo", ["TB", "LB", "W", "SW", "SL"])
def test_remaining_and_reset_are_those_of_now(algo: str, redis7: Server, tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(
        f"{{url: /, rules: [{{name: r, unit: day, rpu: 50, algo: {algo}, scope: global}}]}}"
    )
    with counting(redis7, file) as guard:
        fresh = told("peek", redis7.url, "r", "--rules", str(file))
        assert (fresh["remaining"], fresh["reset_after"]) == (fresh["most"], 0)
        guard.check(Request())
        used = told("peek", redis7.url, "r", "--rules", str(file))
        assert used["remaining"] == fresh["most"] - 1
        assert used["reset_after"] > 0


def test_the_store_may_come_from_the_environment_or_the_file(
    redis7: Server, guard: Guard, rules: Path
) -> None:
    assert guard.check(request())
    environment = {"DIANA_STORE": redis7.url}
    text = said("peek", "plan", "bob", "--namespace", "shop", "--tier", "pro", **environment)
    assert "✓ 5 of 6 left" in text
    with_store = rules.with_name("with-store.yaml")
    with_store.write_text(f"store: {redis7.url}\n{RULES}")
    arguments = ["peek", "plan", "bob", "--rules", str(with_store), "--tier", "pro"]
    assert "✓ 5 of 6 left" in said(*arguments, DIANA_STORE=None)
    assert run("peek", "plan", "bob", "--rules", str(rules), DIANA_STORE=None).exit_code == 2


def test_what_was_searched_is_said(redis7: Server, guard: Guard, rules: Path) -> None:
    guard.check(request())
    result = run("peek", redis7.url, "plan", "bob")
    assert result.exit_code == 1
    assert f"searched: namespace 'diana' of {redis7.url}\n" in result.output
    assert "there are rules in other namespaces: shop; choose one with --namespace" in result.output
    result = run("peek", redis7.url, "plam", "bob", "--rules", str(rules))
    assert f"there is no rule 'plam'; did you mean 'plan'?\nsearched: {rules}\n" in result.output
    result = run("peek", redis7.url, "plan", "bob", "--rules", str(rules), "--namespace", "x")
    assert (result.exit_code, "remove --namespace" in result.output) == (2, True)


def test_without_what_nodes_publish_beside_a_limit_the_assumption_is_said(
    redis7: Server, guard: Guard
) -> None:
    guard.check(request())
    redis7.ask("DEL", *redis7.ask("KEYS", "shop:rule:*"))
    text = said("peek", redis7.url, "special", "bob", "--namespace", "shop")
    assert "limit   by hour\n" in text
    assert "note    the store does not say what the rule costs" in text
    redis7.ask("SET", "shop:rule:shop:special|account|global|TB|hour", '{"tiers": 7}')
    again = said("peek", redis7.url, "special", "bob", "--namespace", "shop")
    assert "note    the store does not say what the rule costs" in again


def test_a_live_edit_of_tiers_is_published(redis7: Server, guard: Guard, rules: Path) -> None:
    rules.write_text(RULES.replace("free: 3", "free: 4"))

    def is_published() -> bool:
        guard.check(request("erin"))
        return "free  4/hour" in said("peek", redis7.url, "plan", "erin", "--namespace", "shop")

    until(is_published, "the edit is published")


LOCAL = """
local_store: shared://{zone}?size=4m
identity: {{account: header X-Account-Id, tier: header X-Tier, trust_tier: true}}
limits:
  - url: /
    rules:
      - {{name: plan, actor: account, unit: hour, rpu: {{free: 2, else: 1}}, cost: 1}}
      - {{name: in all, unit: hour, rpu: 100, scope: divided}}
"""


@pytest.mark.parametrize("native", ["0", "1"], ids=["python", "whichever"])
def test_counters_in_a_zone(native: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIANA_NATIVE", native)
    monkeypatch.delenv("DIANA_STORE", raising=False)
    with zone_name() as zone:
        file = tmp_path / "diana.yaml"
        file.write_text(LOCAL.format(zone=zone))
        guard = Guard.from_file(file)
        for _ in range(2):
            assert guard.check(request("alice", "free"))
        rules = ["--rules", str(file)]
        for where in ([f"shared://{zone}"], []):
            text = said("peek", *where, "plan", "alice", *rules)
            assert f"store   zone {zone}\n" in text
            assert "  free  2/hour  ✗ denied, retry after " in text
        assert "unblocked; under every tier" in said(
            "unblock", f"shared://{zone}", "plan", "alice", *rules
        )
        assert guard.check(request("alice", "free"))
        assert said("reset", "plan", "alice", *rules) == "plan: forgotten\n"
        assert "nothing was counted" in said("reset", "plan", "alice", *rules)
        assert "note    each node has a share" in said("peek", "in all", *rules)
        bare = run("peek", f"shared://{zone}", "plan", "alice")
        assert (bare.exit_code, "add --rules FILE" in bare.output) == (2, True)
        override = run("override", f"shared://{zone}", "plan", "alice", "--rpu", "9", *rules)
        assert (override.exit_code, "write overrides: into the rules file" in override.output) == (
            1,
            True,
        )
        guard.close()


def test_where_no_command_can_look(redis7: Server, tmp_path: Path) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text("{url: /, rules: [{name: here, unit: hour, rpu: 9}]}")
    rules = ["--rules", str(file)]
    in_memory = run("peek", "here", *rules, DIANA_STORE=None)
    assert in_memory.exit_code == 1
    assert "in the memory of each process, which no command can read" in in_memory.output
    local = run("peek", redis7.url, "here", *rules)
    assert local.exit_code == 1
    assert "has scope local, so it counts in each node's local_store" in local.output
    assert (
        "memory:// counts in the memory of each process" in run("peek", "memory://", "here").output
    )
    assert "there is no zone nosuch" in run("peek", "shared://nosuch", "here", *rules).output
    assert "is no URL" in run("peek", "localhost:6379", "here").output


@pytest.mark.parametrize("with_file", [False, True])
def test_limits_of_zero(redis7: Server, tmp_path: Path, with_file: bool) -> None:
    rules = tmp_path / "zero.yaml"
    rules.write_text(
        """
        identity: {account: header X-Account-Id, tier: header X-Tier, trust_tier: true}
        limits: [{url: /, rules: [{name: plan, actor: account, unit: hour, rpu: {free: 0, pro: 6, else: 0}, scope: global}]}]
        """
    )
    with counting(redis7, rules) as guard:
        assert guard.check(request(tier="pro", path="/"))
        assert not guard.check(request(tier="free", path="/"))
        until(lambda: redis7.ask("KEYS", "diana:rule:*"), "the rule is published")
        more = ["--rules", str(rules)] if with_file else []
        pro = told("peek", redis7.url, "plan", "bob", "--tier", "pro", *more)
        assert (pro["limit"], pro["remaining"]) == ("6/hour", 5)
        for tier in ("free", "else"):
            zero = told("peek", redis7.url, "plan", "bob", "--tier", tier, *more)
            assert (zero["limit"], zero["allowed"], zero["retry_after"]) == ("0/hour", False, None)
            shown = said("peek", redis7.url, "plan", "bob", "--tier", tier, *more)
            assert "✗ denied, always: the limit is 0" in shown
            result = run("unblock", redis7.url, "plan", "bob", "--tier", tier, *more)
            assert result.exit_code == 1
            assert "its limit for this client is 0" in result.output
        assert "forgotten" in said("reset", redis7.url, "plan", "bob", *more)
        assert "0/hour for bob" in said("override", redis7.url, "plan", "bob", "--rpu", "0", *more)
        until(lambda: not guard.check(request(tier="pro", path="/")), "the override is known")
        assert "an override" in said("peek", redis7.url, "plan", "bob", *more)


def stands_at_zero(url: str, *options: str) -> bool:
    result = run("peek", url, "one", "bob", *options)
    return "✗ denied, always: the limit is 0" in result.output


def is_found_with_zero(redis7: Server) -> None:
    until(lambda: stands_at_zero(redis7.url), "the limit of 0 is published")
    until(lambda: not redis7.ask("KEYS", "diana:limit:*"), "the former limit is not")
    result = run("unblock", redis7.url, "one", "bob")
    assert (result.exit_code, "its limit for this client is 0" in result.output) == (1, True)


@pytest.mark.parametrize(
    "limit",
    [
        "unit: hour, rpu: {}",
        "unit: hour, algo: SL, rpu: {}",
        "unit: hour, rpu: {{free: {0}, else: {0}}}",
    ],
)
def test_a_rule_that_is_edited_to_zero_is_found_with_zero(
    redis7: Server, tmp_path: Path, limit: str
) -> None:
    def text(most: int) -> str:
        return f"""
            identity: {{account: header X-Account-Id, tier: header X-Tier, trust_tier: true}}
            limits: [{{url: /, rules: [{{name: one, actor: account, {limit.format(most)}, scope: global}}]}}]
            """

    rules = tmp_path / "zero.yaml"
    rules.write_text(text(5))
    with counting(redis7, rules) as guard:
        assert guard.check(request(path="/"))
        until(lambda: redis7.ask("KEYS", "diana:rule:*"), "the rule is published")
        guard._evaluator.swap(rules_from_bytes(text(0).encode()))
        assert not guard.check(request(path="/"))
        is_found_with_zero(redis7)
        guard._evaluator.swap(rules_from_bytes(text(7).encode()))
        assert guard.check(request(path="/"))
        until(lambda: not stands_at_zero(redis7.url), "the limit counts again")
        assert redis7.ask("KEYS", "diana:limit:*")


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
@pytest.mark.parametrize(
    "limit",
    ["unit: hour, rpu: 0", "unit: hour, algo: SL, rpu: 0", "unit: hour, rpu: {free: 0, else: 0}"],
)
def test_an_override_of_a_rule_of_zero_is_for_its_client_alone(
    redis7: Server, tmp_path: Path, limit: str, mode: str
) -> None:
    rules = tmp_path / "zero.yaml"
    rules.write_text(
        f"""
        identity: {{account: header X-Account-Id, tier: header X-Tier, trust_tier: true}}
        limits: [{{url: /, rules: [{{name: one, actor: account, {limit}, scope: global, mode: {mode}}}]}}]
        """
    )
    with counting(redis7, rules) as guard:
        guard.check(request(path="/"))
        is_found_with_zero(redis7)
        assert " for alice" in said("override", redis7.url, "one", "alice", "--rpu", "3")
        alice = request("alice", path="/")
        until(lambda: guard.check(alice).decisions[0], "the override is known")
        assert "of 3 left" in said("peek", redis7.url, "one", "alice")
        late = Guard.from_file(rules, f"{redis7.url}?budget=10s")
        until(lambda: late.check(alice).decisions[0].limit == 3, "a later node reads it")
        late.close()
        is_found_with_zero(redis7)


def test_a_rule_of_zero_in_a_zone_is_reset(tmp_path: Path) -> None:
    rules = tmp_path / "zero.yaml"
    with zone_name() as name:
        for rpu in (5, 0):
            rules.write_text(
                f"{{url: /, rules: [{{name: one, actor: account, unit: hour, rpu: {rpu}}}]}}"
            )
            guard = Guard.from_file(rules, local_store=f"shared://{name}?size=4m")
            assert bool(guard.check(request())) is (rpu > 0)
            guard.close()
        arguments = (f"shared://{name}", "one", "bob", "--rules", str(rules))
        assert told("peek", *arguments)["allowed"] is False
        assert "forgotten" in said("reset", *arguments)
