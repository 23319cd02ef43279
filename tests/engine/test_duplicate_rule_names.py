"""Rules of one name: each can be named by what metrics call it, and the name that they share is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from diana import AsyncGuard, ConfigError, Guard, Request
from diana.core.limit_adjustments import LiveOverrides, Override
from diana.nginx.rules_json import wire_rules
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock

RULES = """\
- url: /
  rules:
    - {name: a, actor: header X-Key, unit: minute, rpu: 10}
    - {name: a, actor: header X-Key, unit: hour, rpu: 20}
    - {name: alone, actor: ip, unit: day, rpu: 1000}
"""
LISTED = """\
2 rules have the name 'a'; write one of
  'a (minute)': 10/minute by header x-key, TB, local, for /
  'a (hour)': 20/hour by header x-key, TB, local, for /"""
KEY = Request("GET", "/x", {"X-Key": "k"}, peer="203.0.113.9")


def policy(text: str = RULES) -> Any:
    return rules_from_bytes(text.encode())


@pytest.fixture
def guard() -> Guard:
    return Guard(policy(), clock=FakeClock())


def left(guard: Guard) -> list[int]:
    return [decision.remaining + 1 for decision in guard.peek(KEY).decisions]


def test_the_shared_name_is_refused_with_all_candidates(guard: Guard) -> None:
    for ask in (
        lambda: guard.override("a", "k", rpu=3),
        lambda: guard.remove_override("a", "k"),
        lambda: guard.reset(KEY, "a"),
        lambda: guard.policy.with_functions("a", cost=lambda _: 2),
    ):
        with pytest.raises(ConfigError) as error:
            ask()
        assert str(error.value) == LISTED


def test_each_is_named_as_in_metrics(guard: Guard) -> None:
    guard.override("a (hour)", "k", rpu=5)
    assert left(guard) == [10, 5, 1000]
    guard.check(KEY)
    guard.reset(KEY, "a (minute)")
    assert left(guard) == [10, 4, 999]
    guard.remove_override("a (hour)", "k")
    assert left(guard) == [10, 19, 999]
    guard.reset(KEY, "alone")
    assert left(guard) == [10, 19, 1000]
    some = Guard(policy().with_functions("a (hour)", cost=lambda _: 7), clock=FakeClock())
    some.check(KEY)
    assert left(some) == [9, 7, 999]  # a look costs 7, too


def test_the_same_for_coroutines() -> None:
    async def main() -> None:
        guard = AsyncGuard(policy(), clock=FakeClock())
        with pytest.raises(ConfigError, match="2 rules have the name 'a'"):
            await guard.reset(KEY, "a")
        with pytest.raises(ConfigError, match="2 rules have the name 'a'"):
            guard.override("a", "k", rpu=3)
        guard.override("a (minute)", "k", rpu=3)
        await guard.check(KEY)
        await guard.reset(KEY, "a (hour)")
        verdict = await guard.peek(KEY)
        assert [decision.remaining for decision in verdict.decisions] == [1, 19, 998]

    asyncio.run(main())


def test_an_unknown_name_hints_at_the_names_that_choose_one(guard: Guard) -> None:
    with pytest.raises(ConfigError, match=r"no rule 'a \(hours\)'; did you mean 'a \(hour\)'\?"):
        guard.reset(KEY, "a (hours)")


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        (
            "- {url: /, rules: [{name: a, unit: day, rpu: 1}]}\n"
            "- {url: /, methods: POST, rules: [{name: a, unit: day, rpu: 1, actor: ip}]}",
            ["a (all methods)", "a (POST)"],
        ),
        (
            "- {url: /b, rules: [{name: a, unit: day, rpu: 1, actor: ip}]}\n"
            "- {url: /c, rules: [{name: a, unit: day, rpu: 1, actor: all}]}",
            ["a (/b)", "a (/c)"],
        ),
        (
            "- {url: /, rules: [{name: a, unit: day, rpu: 1}, {name: a, unit: day, rpu: 1, algo: W}]}",
            ["a (TB)", "a (W)"],
        ),
        (
            "- {url: /, rules: [{name: a, unit: day, rpu: 1, algo: SW, slices: 2}, "
            "{name: a, unit: day, rpu: 1, algo: SW, slices: 3}, {name: a, unit: hour, rpu: 1}]}",
            ["a (day, SW, slices 2)", "a (day, SW, slices 3)", "a (hour, TB)"],
        ),
    ],
)
def test_names_tell_by_what_differs_and_choose_exactly_one(rules: str, names: list[str]) -> None:
    guard = Guard(policy(rules), clock=FakeClock())
    assert [rule.label for rule in guard.policy.rules] == names
    for name in names:
        guard.reset(KEY, name)


def test_a_rule_that_has_another_ones_label_as_its_name_is_the_one_that_is_named() -> None:
    third = "    - {name: a (hour), actor: ip, unit: hour, rpu: 7}\n"
    guard = Guard(policy(RULES + third), clock=FakeClock())
    guard.override("a (hour)", "203.0.113.9", rpu=3)
    assert left(guard) == [10, 20, 1000, 3]


def test_an_override_under_a_name_that_became_shared_holds_for_each_of_them(guard: Guard) -> None:
    """So an edit that adds a rule of the same name never takes a client's override away."""
    guard = Guard(policy(RULES.replace("name: a, actor: header X-Key, unit: hour", "unit: hour")))
    guard.override("a", "k", rpu=5)
    guard._evaluator.swap(policy())
    assert left(guard) == [5, 5, 1000]
    guard.override("a (hour)", "k", rpu=7)
    assert left(guard) == [5, 7, 1000]
    guard.remove_override("a (hour)", "k")
    assert left(guard) == [5, 5, 1000]
    guard.remove_override("a (hour)", "k")
    assert left(guard) == [10, 20, 1000]


def test_errors_of_each_are_told_apart() -> None:
    def fails(_: Request) -> int:
        raise KeyError

    some = policy().with_functions("a (hour)", cost=fails)
    verdict = Guard(some, clock=FakeClock()).check(KEY)
    assert list(verdict.function_errors) == [("a (hour)", "cost")]


def test_nginx_gets_the_overrides_of_each() -> None:
    stored = LiveOverrides()
    stored.set("a", "#1", Override(5))
    stored.set("a (hour)", "#1", Override(7))
    stored.set("a (hour)", "#2", Override(9))
    rules = json.loads(wire_rules(policy(RULES.replace("header X-Key", "ip")), stored=stored))[
        "rules"
    ]
    assert [list(rule.get("stored", {})) for rule in rules] == [["#1"], ["#1", "#2"], []]
    assert [rule["stored"]["#1"]["meter"]["rpu"] for rule in rules[:2]] == [5, 7]
