"""Rules in code: a mapping says what a file with the same in it says, and is wrong where that is wrong."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from diana import AsyncGuard, ConfigError, Guard, Policy, Request, load_rules
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock

FILE = """\
store: memory://
namespace: shop
identity: {account: cookie session, tier: header X-Plan, trust_tier: true, trusted_proxies: [10.0.0.0/8, "::1"]}
missing: together
defaults: {algo: LB, max_wait: 2s, cost: 1}
response:
  status: 429
  headers: [ietf, legacy]
  body: {text: "slow down", json: '{"error": "slow down"}'}
shed: [{factor: loop_lag, levels: [{above: 50, reject: 10}]}]
limits:
  - url: /users/{id}/*
    methods: [GET, POST]
    except: [/users/me/health, "/users/you/*"]
    allow: {ip: [10.0.0.1], header X-Internal-Token: "${TOKEN}"}
    rules:
      - {actor: [ip, segment id], unit: 30s, rpu: 100, burst: 8, nodelay: false, delay: 5}
      - {actor: query api_key, unit: day, rpu: 1000, algo: sliding window, slices: 24, mode: shadow, name: "keys, by day"}
  - url: /plans
    rules:
      - {actor: account, unit: hour, rpu: {free: 1, pro: 10, else: 1}, algo: TB, charge_on: [4xx, 500], scope: global}
      - actor: account
        name: days
        unit: day
        rpu: 5
        algo: W
        overrides: {acme: {rpu: 500, until: 2096-12-01}, "7": {rpu: 9, until: 2096-12-01 18:00:00}}
"""
CLASSIC = "Url: /\nrules:\n  - {actor: ip, unit: minute, RPU: 2}\n"
ENVIRON = {"TOKEN": "s3cret"}


def facts(policy: Policy) -> list[dict[str, Any]]:
    """All of the rules that can be compared; functions and positions cannot."""
    found = []
    for rule in policy.rules:
        kept = {name: getattr(rule, name) for name in rule.__dataclass_fields__}
        for name in (
            "key_of",
            "key_from",
            "position",
            "meter",
            "tiers",
            "overrides",
            "allow",
            "only",
            "functions",
        ):
            kept.pop(name, None)
        kept["meters"] = [
            (meter.id, meter.limit, meter.params, meter.algorithm.code)
            for meter in (rule.meter, *(rule.tiers.meters.values() if rule.tiers else ()))
        ]
        kept["overrides"] = {
            value: (one.meter.limit, one.until_us) for value, one in rule.overrides.items()
        }
        kept["lists"] = [
            (entry.spelling, entry.values)
            for roster in (*rule.allow, *rule.only)
            for entry in roster.entries
        ]
        found.append(kept)
    return found


@pytest.mark.parametrize("text", [FILE, CLASSIC])
def test_a_mapping_says_what_the_file_says(text: str) -> None:
    mapping = yaml.safe_load(text)
    before = deepcopy(mapping)
    policy = load_rules(mapping, environ=ENVIRON)
    of_file = rules_from_bytes(text.encode(), environ=ENVIRON)
    assert facts(policy) == facts(of_file)
    assert [line.name for line in policy.settings.shed] == [
        line.name for line in of_file.settings.shed
    ]
    for name in ("store", "namespace", "missing", "answer", "identity"):
        assert getattr(policy.settings, name) == getattr(of_file.settings, name)
    assert [one.message for one in policy.warnings] == [one.message for one in of_file.warnings]
    assert mapping == before


def rule(**fields: Any) -> dict[str, Any]:
    return {"limits": [{"url": "/", "rules": [{"unit": "minute", "rpu": 5, **fields}]}]}


def test_later_changes_of_the_mapping_have_no_effect() -> None:
    mapping = rule(name="mine")
    policy = load_rules(mapping)
    version = policy.version
    mapping["limits"][0]["rules"][0]["rpu"] = 1
    mapping["limits"].clear()
    assert (policy.rules[0].rpu, policy.version) == (5, version)


def test_the_version_is_that_of_what_the_mapping_holds() -> None:
    assert load_rules(rule()).version == load_rules(OrderedDict(rule())).version
    assert load_rules(rule()).version != load_rules(rule(rpu=6)).version


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (date(2096, 12, 1), "2096-12-01"),
        (datetime(2096, 12, 1, 18, 30), "2096-12-01 18:30:00"),
        (datetime(2096, 12, 1, 18, 30, tzinfo=UTC), "2096-12-01T18:30:00Z"),
        (datetime(2096, 12, 1, tzinfo=timezone(timedelta(hours=2))), "2096-12-01T00:00:00+02:00"),
    ],
)
def test_dates_are_read_as_in_a_file(value: object, written: str) -> None:
    policy = load_rules(rule(actor="ip", overrides={"10.0.0.1": {"rpu": 9, "until": value}}))
    text = f"limits: [{{url: /, rules: [{{unit: minute, rpu: 5, actor: ip, overrides: {{10.0.0.1: {{rpu: 9, until: '{written}'}}}}}}]}}]"
    (mine,), (of_file,) = (
        [one.until_us for one in some.rules[0].overrides.values()]
        for some in (policy, rules_from_bytes(text.encode()))
    )
    assert mine == of_file


class Word(str, Enum):  # noqa: UP042  # whose str() is not its value
    minute = "minute"


@pytest.mark.parametrize(
    "mapping",
    [
        MappingProxyType(rule()),
        {"limits": ({"url": "/", "rules": (MappingProxyType({"unit": "minute", "rpu": 5}),)},)},
        rule(unit=Word.minute),
        rule(nodelay=True, algo="LB"),
        {"url": "/", "rules": [{"unit": "minute", "rpu": 5}]},
    ],
)
def test_other_kinds_of_mappings_lists_and_texts(mapping: Any) -> None:
    assert load_rules(mapping).rules[0].rpu == 5


def cycle() -> dict[str, Any]:
    mapping = rule()
    mapping["limits"][0]["rules"][0]["rpu"] = mapping
    return mapping


def list_in_itself() -> dict[str, Any]:
    rules: list[Any] = []
    rules.append(rules)
    return {"url": "/", "rules": rules}


def deep() -> dict[str, Any]:
    value: Any = "x"
    for _ in range(100_000):
        value = [value]
    return {"limits": value}


def laughs() -> dict[str, Any]:
    value: Any = ["lol"] * 10
    for _ in range(25):
        value = [value] * 10
    return {"limits": value}


class Hostile:
    def __repr__(self) -> str:
        raise AssertionError("never asked")

    __str__ = __repr__


A_VALUE = (
    "a value must be a str, an int, a bool, a date, a list or a mapping (got {}); write one of them"
)
MISTAKES: list[tuple[str, Callable[[], Any], str, str]] = [
    # what is wrong; the mapping; where; what is said
    ("a number", lambda: rule(rpu="ten"), "limits[0].rules[0].rpu", "'ten' is no whole number"),
    ("a number as text", lambda: rule(rpu="5"), "limits[0].rules[0].rpu", "rpu must be a number (got '5', a text in quotes); write rpu: 5"),
    ("a float", lambda: rule(rpu=5.0), "limits[0].rules[0].rpu", "'5.0' is no whole number"),
    ("no number", lambda: rule(rpu=float("nan")), "limits[0].rules[0].rpu", "'.nan' is no whole number"),
    ("infinity", lambda: rule(rpu=float("-inf")), "limits[0].rules[0].rpu", "'-.inf' is no whole number"),
    ("true", lambda: rule(rpu=True), "limits[0].rules[0].rpu", "'true' is no whole number"),
    ("none", lambda: rule(rpu=None), "limits[0].rules[0].rpu", "there is no value; write one, or remove the field"),
    ("negative", lambda: rule(rpu=-5), "limits[0].rules[0].rpu", "'-5' is no whole number"),
    ("large", lambda: rule(rpu=10**30), "limits[0].rules[0].rpu", "is too large; write at most 1000000000000"),
    ("huge", lambda: rule(rpu=10**5_000), "limits[0].rules[0].rpu", A_VALUE.format("an int of over 40 digits")),
    ("a list", lambda: rule(rpu=[5]), "limits[0].rules[0].rpu", "a list where a number should be"),
    ("a mapping for rules", lambda: {"url": "/", "rules": {}}, "rules", "rules is a list; write each rule behind a dash (-)"),
    ("a text for limits", lambda: {"limits": "x"}, "limits", "'x' where a url with rules should be"),
    ("an unknown field", lambda: rule(rps=5), "limits[0].rules[0].rps", "'rps' is no field here; did you mean rpu?"),
    ("a field twice", lambda: rule(RPU=5), "limits[0].rules[0].rpu", "'RPU' stands here and beside it as 'rpu'; keep one"),
    ("nothing", dict, "limits", "there are no limits; write limits:"),
    ("a key that is no text", lambda: rule() | {5: 6}, "", 'a key must be a str (got 5); write "5"'),
    ("a key of None", lambda: {None: 6}, "", 'a key must be a str (got None); write "name"'),
    ("an object as key", lambda: {Hostile(): 6}, "", "a key must be a str (got an object of type Hostile); write"),
    ("an object", lambda: rule(rpu=Hostile()), "limits[0].rules[0].rpu", A_VALUE.format("an object of type Hostile")),
    ("bytes", lambda: rule(name=b"x"), "limits[0].rules[0].name", A_VALUE.format("an object of type bytes")),
    ("a set", lambda: rule(actor={"ip"}), "limits[0].rules[0].actor", A_VALUE.format("an object of type set")),
    ("a generator", lambda: {"limits": (n for n in [1])}, "limits", A_VALUE.format("an object of type generator")),
    ("a function", lambda: rule(cost=len), "limits[0].rules[0].cost", A_VALUE.format("an object of type builtin_function_or_method")),
    ("a fraction", lambda: rule(cost=Fraction(1)), "limits[0].rules[0].cost", A_VALUE.format("an object of type Fraction")),
    ("a surrogate", lambda: rule(name="\ud800"), "limits[0].rules[0].name", "a text must be Unicode (got '\\ud800'); write it without"),
    ("a surrogate as key", lambda: rule(**{"\ud800": 5}), "limits[0].rules[0]", "a text must be Unicode (got '\\ud800'); write it without"),
    ("a cycle", cycle, "limits[0].rules[0].rpu", "a mapping must not contain itself; write its values out"),
    ("a list in itself", list_in_itself, "rules[0]", "a list must not contain itself; write its values out"),
    ("depth", deep, "limits" + "[0]" * 31, "there is nesting deeper than 32; no rule needs that"),
    ("a billion laughs", laughs, "", "the rules are over 1 MiB; remove what is not needed"),
    ("a long text", lambda: rule(body="x" * (1 << 20)), "", "the rules are over 1 MiB; remove what is not needed"),
    ("no secret in the environment", lambda: rule(allow={"header X": "${NOPE}"}), "limits[0].rules[0].allow.'header X'",
     "${NOPE} is not set"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "path", "said"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES]
)
def test_a_mistake_has_its_path_and_no_line(make: Callable[[], Any], path: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_rules(make())
    error = caught.value
    assert (error.line, error.column, error.file, error.path or "") == (None, None, "rules", path)
    assert said in error.message
    assert str(error).startswith(f"rules: {path}: " if path else "rules: ")
    assert "line 0" not in str(error)


def test_all_mistakes_are_said_at_once_in_their_order() -> None:
    with pytest.raises(ConfigError) as caught:
        load_rules(
            {
                "limits": [
                    {"url": "/", "rules": [{"unit": "w", "rpu": 0.5}, {"unit": "day", "rpus": 5}]}
                ],
                "missing": "x",
            }
        )
    assert [(one.line, one.path) for one in caught.value.errors] == [
        (None, "limits[0].rules[0].unit"),
        (None, "limits[0].rules[0].rpu"),
        (None, "limits[0].rules[1]"),
        (None, "limits[0].rules[1].rpus"),
        (None, "missing"),
    ]
    with pytest.raises(ConfigError) as caught:
        load_rules(rule(cost=b"x", name={1}, body={2: "x"}))
    assert [one.path for one in caught.value.errors] == [
        "limits[0].rules[0].cost",
        "limits[0].rules[0].name",
        "limits[0].rules[0].body",
    ]


def test_another_rule_is_named_by_its_path() -> None:
    twice = {"url": "/", "rules": [{"unit": "minute", "rpu": 5}, {"unit": "minute", "rpu": 6}]}
    with pytest.raises(
        ConfigError,
        match=r"rules: rules\[1\]: this rule counts in the counter of the rule in rules\[0\]:",
    ):
        load_rules(twice)
    wrong = {"defaults": {"cost": 9}, **rule(rpu=3)}
    with pytest.raises(ConfigError, match=r"\(in the rule of limits\[0\]\.rules\[0\]\)"):
        load_rules(wrong)
    nested = {
        "limits": [
            {"url": "/", "rules": [{"unit": "minute", "rpu": 1}]},
            {"url": "/a", "rules": [{"unit": "minute", "rpu": 2}]},
        ]
    }
    (warning,) = load_rules(nested).warnings
    assert "(limits[0].rules[0])" in warning.message


def test_a_rule_that_does_not_fit_its_zone_is_named_by_its_path() -> None:
    url = f"shared://mapping-{uuid4().hex[:8]}"
    with pytest.raises(ConfigError) as caught:
        Guard(load_rules(rule(algo="SL", rpu=20_000) | {"local_store": url}))
    assert (caught.value.line, caught.value.column) == (None, None)
    assert (caught.value.path or "").startswith("limits[0].rules[0].")


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=4)
    | st.dates()
)
WORDS = st.sampled_from(
    [
        "limits",
        "url",
        "rules",
        "rpu",
        "unit",
        "actor",
        "allow",
        "overrides",
        "shed",
        "identity",
        "response",
        "body",
    ]
)


@given(
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(WORDS | LEAVES, inner, max_size=4)
        ),
        max_leaves=30,
    ).filter(lambda value: isinstance(value, dict))
)
def test_anything_is_rules_or_a_config_error_with_a_path(value: dict[Any, Any]) -> None:
    said: tuple[ConfigError, ...] = ()
    try:
        load_rules(value)
    except ConfigError as error:
        said = (error, *error.errors)
    for one in said:
        assert (one.line, one.column, one.file) == (None, None, "rules")
        assert "line 0" not in one.message


@pytest.mark.parametrize("value", [5, None, b"diana.yaml", ["limits"], object])
def test_what_is_no_rules_at_all(value: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"rules must be the path of a file or a mapping \(got .*; write load_rules",
    ):
        load_rules(value)
    with pytest.raises(
        ConfigError,
        match=r"rules must be the path of a file, a URL or a mapping \(got .*; write AsyncGuard",
    ):
        AsyncGuard.from_file(value)


def test_load_rules_shows_no_url() -> None:
    with pytest.raises(ConfigError, match=r"got a URL\); write Guard.from_file\(URL\)") as caught:
        load_rules("redis://:hunter2@localhost/rules")
    assert "hunter2" not in str(caught.value)


def test_a_guard_of_a_mapping(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "diana"):
        guard = Guard.from_file(rule(rpu=1), clock=FakeClock())
    asked = [guard.check(Request("GET", "/")).allowed for _ in range(2)]
    assert asked == [True, False]
    assert guard.problems == ()
    guard.close()


def test_remote_rules_need_a_file() -> None:
    mapping = rule() | {"rules_from": "https://rules.example/rules.yaml"}
    with pytest.raises(
        ConfigError,
        match=r"rules_from must stand in a file.*got a mapping.*from_file\(\"diana.yaml",
    ):
        Guard.from_file(mapping)
