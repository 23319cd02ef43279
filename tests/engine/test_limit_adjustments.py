"""Plans and exceptions: tiers, overrides, allow and only, functions of the request, charges by outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diana import AsyncGuard, ConfigError, Guard, Request
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock

BEGIN_US = 1_700_000_000_000_000
NOW_2023 = "2023-11-14T22:14:00Z"
"""Forty seconds later."""


def guard(text: str, store: str | None = None, environ: dict[str, str] | None = None) -> Guard:
    policy = rules_from_bytes(text.encode(), environ=environ or {"NONE": ""})
    return Guard(policy, store, clock=FakeClock(BEGIN_US))


def asked(account: str = "alice", plan: str | None = None, **more: str) -> Request:
    headers = {"X-Account-Id": account} | ({"X-Plan": plan} if plan else {})
    return Request("GET", "/", headers, peer=more.get("peer", "203.0.113.9"))


TIERS = """
identity: {tier: header X-Plan, trust_tier: true}
limits:
  - url: /
    rules:
      - {name: api, actor: account, unit: minute, rpu: {free: 6, pro: 60, else: 3}, algo: %s, scope: %s}
"""


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where rules of scope global count."""
    if request.param == "memory":
        yield "memory://"
    else:
        yield f"{request.getfixturevalue('valkey_url')}?budget=10s"


@pytest.mark.parametrize("algo", ["TB", "W", "SW", "SL"])
def test_an_upgrade_raises_the_limit_and_keeps_the_count(store: str, algo: str) -> None:
    checks = guard(TIERS % (algo, "global"), store)
    assert [bool(checks.check(asked(plan="free"))) for _ in range(7)] == [True] * 6 + [False]
    upgraded = checks.check(asked(plan="pro"))
    assert (upgraded.allowed, upgraded.decisions[0].remaining) == (True, 53)
    assert not checks.check(asked(plan="free"))
    assert not checks.check(asked(plan="no such plan"))
    assert checks.check(asked("bob")).decisions[0].remaining == 2
    checks.close()


def test_a_tier_that_cannot_be_found_out_is_else() -> None:
    checks = guard(TIERS % ("TB", "local"))
    twice = Request("GET", "/", [("X-Account-Id", "a"), ("X-Plan", "pro"), ("X-Plan", "free")])
    assert checks.check(twice).decisions[0].limit == 3


def test_an_edited_tier_keeps_the_count(tmp_path: Path) -> None:
    old = rules_from_bytes((TIERS % ("TB", "local")).encode())
    new = rules_from_bytes((TIERS % ("TB", "local")).replace("pro: 60", "pro: 90").encode())
    checks = Guard(old, clock=FakeClock(BEGIN_US))
    for _ in range(6):
        assert checks.check(asked(plan="free"))
    checks._evaluator.swap(new)
    assert checks.check(asked(plan="pro")).decisions[0].remaining == 83


def test_refunds_are_in_the_numbers_that_were_charged() -> None:
    checks = guard(TIERS % ("TB", "local"))
    verdict = checks.check(asked(plan="pro"))
    checks.refund(verdict)
    assert checks.peek(asked(plan="pro")).decisions[0].remaining == 59


OVERRIDES = """
limits:
  - url: /
    rules:
      - name: api
        actor: account
        unit: minute
        rpu: 3
        algo: %s
        scope: %s
        overrides:
          acme: {rpu: 30}
          brief: {rpu: 30, until: {UNTIL}}
""".replace("{UNTIL}", NOW_2023)


@pytest.mark.parametrize("algo", ["TB", "W", "SW", "SL"])
def test_an_override_is_for_one_value_and_keeps_the_count(store: str, algo: str) -> None:
    checks = guard(OVERRIDES % (algo, "global"), store)
    assert checks.check(asked("acme")).decisions[0].remaining == 29
    assert checks.check(asked("alice")).decisions[0].remaining == 2
    checks.override("api", "alice", rpu=10)
    assert checks.check(asked("alice")).decisions[0].remaining == 8
    checks.remove_override("api", "alice")
    assert checks.check(asked("alice")).decisions[0].remaining == 0
    checks.close()


def test_an_override_ends_when_it_says() -> None:
    checks = guard(OVERRIDES % ("W", "local"))
    assert checks.check(asked("brief")).decisions[0].limit == 30
    clock = checks.clock
    assert isinstance(clock, FakeClock)
    clock.advance(40)
    assert checks.check(asked("brief")).decisions[0].limit == 3


def test_an_override_of_code_must_fit_its_rule() -> None:
    checks = guard(OVERRIDES % ("W", "local"))
    with pytest.raises(ConfigError, match="there is no rule 'apo'; did you mean 'api'"):
        checks.override("apo", "alice", rpu=10)
    with pytest.raises(ConfigError, match="has no burst"):
        checks.override("api", "alice", rpu=10, burst=5)
    by_all = guard("url: /\nrules: [{name: all, unit: minute, rpu: 3}]")
    with pytest.raises(ConfigError, match="by the value of one actor"):
        by_all.override("all", "alice", rpu=10)


def test_an_override_by_address_is_found_however_it_is_written() -> None:
    text = """
url: /
rules:
  - {actor: ip, unit: minute, rpu: 3, overrides: {"2001:DB8::1": {rpu: 30}, 203.0.113.7: {rpu: 20}}}
"""
    checks = guard(text)
    assert checks.check(asked(peer="2001:db8:0:0:ffff::2")).decisions[0].limit == 30
    assert checks.check(asked(peer="::ffff:203.0.113.7")).decisions[0].limit == 20
    assert checks.check(asked(peer="203.0.113.8")).decisions[0].limit == 3


def test_an_override_by_path_is_found_however_it_is_written() -> None:
    checks = guard(
        "url: /\nrules: [{actor: path, unit: minute, rpu: 3, overrides: {/a/./b/: {rpu: 30}}}]"
    )
    assert checks.check(Request("GET", "/a/b")).decisions[0].limit == 30
    assert checks.check(Request("GET", "/a/c")).decisions[0].limit == 3


@pytest.mark.parametrize(
    ("until", "seconds"),
    [
        ("2023-11-14T22:14:00Z", 40),
        ("2023-11-14T23:14:00+01:00", 40),
        ("2023-11-14 17:14:00-05:00", 40),
        ("'2023-11-14T22:14:00'", 40),
        ("2023-11-15", 6_400),
        ('"2023-11-15"', 6_400),
    ],
)
def test_until_is_a_moment_in_any_time_zone_or_a_day_in_utc(until: str, seconds: int) -> None:
    """In quotes or without: YAML's own dates are read like texts. The clock stands at 22:13:20."""
    checks = guard((OVERRIDES % ("W", "local")).replace(NOW_2023, until))
    clock = checks.clock
    assert isinstance(clock, FakeClock)
    clock.advance(seconds - 1)
    assert checks.check(asked("brief")).decisions[0].limit == 30
    clock.advance(1)
    assert checks.check(asked("brief")).decisions[0].limit == 3


@pytest.mark.parametrize(
    ("listed", "peer", "left_alone"),
    [
        ("'::ffff:10.0.0.1'", "10.0.0.1", True),
        ("'::ffff:10.0.0.0/104'", "10.9.9.9", True),
        ("10.0.0.0/8", "::ffff:10.0.0.1", True),
        ("'2001:db8::/32'", "2001:DB8::1", True),
        ("'fe80::1'", "fe80::1%eth0", True),
        ("'2001:db8::1'", "2001:db8::2", False),
        ("'::/0'", "10.0.0.1", False),
        # Reachable by way of 6to4 from anywhere: not the network itself.
        ("10.0.0.0/8", "2002:a00:1::1", False),
    ],
)
def test_addresses_of_both_versions_are_listed(listed: str, peer: str, left_alone: bool) -> None:
    checks = guard(f"url: /\nallow: {{ip: {listed}}}\nrules: [{{name: api, unit: minute, rpu: 5}}]")
    assert names(checks, Request("GET", "/", peer=peer)) == ([] if left_alone else ["api"])


ALLOW = """
identity: {trusted_proxies: [192.0.2.0/24]}
limits:
  - url: /
    allow: {ip: [10.0.0.0/8, "2001:db8::1"]}
    rules:
      - {name: api, actor: ip, unit: minute, rpu: 1, allow: {header X-Internal-Token: "${TOKEN}"}}
      - {name: trial, actor: ip, unit: minute, rpu: 1, only: {header X-Plan: [free, trial]}}
"""


def names(checks: Guard, request: Request) -> list[str]:
    return [rule.name for rule in checks.check(request).rules]


def test_who_is_allowed_is_left_alone() -> None:
    checks = guard(ALLOW, environ={"TOKEN": "s3cret"})
    everybody: tuple[tuple[str, dict[str, str]], ...] = (
        ("203.0.113.9", {}),
        ("198.51.100.1", {"X-Internal-Token": "s3cre"}),
    )
    for peer, headers in everybody:
        assert names(checks, Request("GET", "/", headers, peer=peer)) == ["api"]
    for peer, headers in (
        ("10.1.2.3", {}),
        ("2001:db8::1", {}),
        ("192.0.2.7", {"X-Forwarded-For": "10.9.9.9"}),
    ):
        assert names(checks, Request("GET", "/", headers, peer=peer)) == []
    token = {"X-Internal-Token": "s3cret", "X-Plan": "trial"}
    assert names(checks, Request("GET", "/", token, peer="203.0.113.9")) == ["trial"]


def test_nobody_is_allowed_by_a_header_of_a_proxy_that_is_not_trusted() -> None:
    checks = guard(ALLOW, environ={"TOKEN": "s3cret"})
    forged = Request("GET", "/", {"X-Forwarded-For": "10.0.0.1"}, peer="203.0.113.9")
    assert names(checks, forged) == ["api"]
    neighbour = Request("GET", "/", {}, peer="2001:db8::2")
    assert names(checks, neighbour) == ["api"]


def test_who_contradicts_himself_is_limited_by_what_is_for_some() -> None:
    checks = guard(ALLOW, environ={"TOKEN": "s3cret"})
    twice = [("X-Plan", "pro"), ("X-Plan", "free")]
    assert names(checks, Request("GET", "/", twice, peer="203.0.113.9")) == ["api", "trial"]
    tokens = [("X-Internal-Token", "s3cret"), ("X-Internal-Token", "other")]
    assert names(checks, Request("GET", "/", tokens, peer="203.0.113.9")) == ["api"]


def test_a_list_by_a_segment_asks_every_reading_of_the_path() -> None:
    checks = guard(
        "url: /t/{tenant}\nallow: {segment tenant: acme}\nrules: [{name: api, unit: minute, rpu: 5}]"
    )
    assert names(checks, Request("GET", "/t/acme")) == []
    assert names(checks, Request("GET", "/t/other/..%2Facme")) == ["api"]


def test_functions_of_the_request_say_limit_cost_and_who_is_left_alone() -> None:
    policy = rules_from_bytes(b"url: /\nrules: [{name: api, actor: account, unit: minute, rpu: 1}]")
    policy = policy.with_functions(
        "api",
        limit=lambda request: "100/minute" if request.header("x-plan") == "pro" else "10/hour",
        allow=lambda request: request.header("x-plan") == "staff",
        cost=lambda request: 1 + len(request.query),
    )
    checks = Guard(policy, clock=FakeClock(BEGIN_US))
    assert checks.check(asked(plan="pro")).decisions[0].remaining == 99
    assert checks.check(asked(plan="free")).decisions[0].remaining == 9
    assert checks.check(asked(plan="staff")).rules == ()
    costly = Request("GET", "/", {"X-Account-Id": "alice", "X-Plan": "pro"}, "1234")
    assert checks.check(costly).decisions[0].remaining == 94
    with pytest.raises(ConfigError, match="there is no rule 'apo'"):
        policy.with_functions("apo", cost=lambda _: 1)


LOGIN = """
limits:
  - url: /login
    rules:
      - {name: wrong passwords, actor: account, unit: hour, rpu: 5, algo: %s, scope: %s, charge_on: [401, 403]}
      - {name: all logins, actor: account, unit: hour, rpu: 100, scope: %s}
"""


def login(account: str = "alice") -> Request:
    return Request("POST", "/login", {"X-Account-Id": account})


@pytest.mark.parametrize("algo", ["TB", "W", "SW", "SL"])
def test_only_answers_with_these_statuses_are_charged(store: str, algo: str) -> None:
    checks = guard(LOGIN % (algo, "global", "global"), store)
    for status in (200, 302, 500):
        verdict = checks.check(login())
        assert verdict.decisions[0].remaining == 4
        checks.settle(verdict, status=status)
    assert checks.peek(login()).decisions[1].remaining == 96
    for wrong in range(5):
        verdict = checks.check(login())
        assert verdict.decisions[0].remaining == 4 - wrong
        checks.settle(verdict, status=401)
    assert checks.check(login()).denied_by is not None
    checks.close()


def test_fifty_wrong_logins_at_once_are_five_guesses(store: str) -> None:
    checks = guard(LOGIN % ("SL", "global", "global"), store)
    reached: list[str] = []

    def guess() -> None:
        verdict = checks.check(login())
        if verdict:
            reached.append("app")
            checks.settle(verdict, status=401)

    threads = [threading.Thread(target=guess) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reached) == 5
    checks.close()


def test_five_right_logins_at_once_lock_nobody_out(valkey_url: str) -> None:
    """A sixth that was denied meanwhile is remembered for a second, and forgotten with the first give-back here."""
    clock = FakeClock(BEGIN_US)
    policy = rules_from_bytes((LOGIN % ("TB", "global", "global")).encode())
    here = Guard(policy, f"{valkey_url}?budget=10s", clock=clock)
    there = Guard(policy, f"{valkey_url}?budget=10s", clock=clock)
    under_way = [here.check(login()) for _ in range(5)]
    assert all(under_way)
    assert not here.check(login())
    assert not there.check(login())
    for verdict in under_way:
        here.settle(verdict, status=200)
    assert here.check(login())
    assert not there.check(login())
    clock.advance(1.001)
    assert there.check(login())
    here.close()
    there.close()


def test_coroutines_settle_too() -> None:
    async def run() -> None:
        policy = rules_from_bytes((LOGIN % ("SL", "local", "local")).encode())
        checks = AsyncGuard(policy, clock=FakeClock(BEGIN_US))
        verdict = await checks.check(login())
        await checks.settle(verdict, status=200)
        assert (await checks.peek(login())).decisions[0].remaining == 4
        await checks.reset(login())
        assert (await checks.peek(login())).decisions[1].remaining == 99
        await checks.close()

    asyncio.run(run())


def test_what_is_looked_at_is_not_charged_and_what_is_reset_is_forgotten() -> None:
    checks = guard(LOGIN % ("SL", "local", "local"))
    for _ in range(5):
        assert checks.check(login())
    looked = checks.peek(login())
    assert looked.denied_by is not None
    assert looked.denied_by.name == "wrong passwords"
    checks.reset(login(), rule="wrong passwords")
    assert [decision.remaining for decision in checks.peek(login()).decisions] == [4, 94]
    with pytest.raises(ConfigError, match="there is no rule"):
        checks.reset(login(), rule="right passwords")
    checks.reset(login())
    assert [decision.remaining for decision in checks.peek(login()).decisions] == [4, 99]


def test_a_look_says_that_a_rule_refuses() -> None:
    checks = guard(
        "url: /\nrules: [{name: api, actor: account, unit: hour, rpu: 5, missing: deny}]"
    )
    verdict = checks.peek(Request("GET", "/"))
    assert verdict.denied_by is not None
    assert verdict.denied_by.name == "api"


ONLY_ERRORS = """
limits:
  - url: /
    rules: [{name: errors, unit: minute, rpu: 600, algo: %s, scope: %s, charge_on: [5xx]}]
"""


@pytest.mark.parametrize("algo", ["TB", "W", "SW", "SL"])
@pytest.mark.parametrize("scope", ["local", "global"])
def test_parallel_requests_that_are_not_charged_all_pass(store: str, algo: str, scope: str) -> None:
    """Rounds of 40 requests side by side, each with response 200 after 200 ms, in which two of 600 a minute leak."""
    text = ONLY_ERRORS % (algo, scope)
    clock = FakeClock(BEGIN_US)
    checks = Guard(rules_from_bytes(text.encode()), store, clock=clock)
    for _ in range(30 if scope == "local" else 5):
        verdicts = [checks.check(asked()) for _ in range(40)]
        assert all(verdicts)
        clock.advance(0.2)
        for verdict in verdicts:
            checks.settle(verdict, status=200)
    assert checks.check(asked()).decisions[0].remaining == 599
    checks.close()
