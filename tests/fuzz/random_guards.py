"""Invents histories of guards: rules files that are valid, requests that meet them, and edits that keep most of what is there."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

from diana import ConfigError, load_rules
from diana.core.duration import micros_from_spelling
from tests.fuzz.guards import (
    Check,
    Edit,
    Forget,
    GuardHistory,
    Look,
    Move,
    MoveToRetry,
    RefundRequest,
    Release,
    RemoveOverride,
    Sent,
    SetOverride,
    Settle,
    Step,
)
from tests.fuzz.stepped_clock import BEGIN_US, SECOND_US

URLS = ("/", "/", "/", "/a", "/a/b", "/users/{id}", "/users/*/orders", "/{x}/b")
PATHS = (
    "/", "/a", "/a", "/a/b", "/a/b", "/a/c", "/users/7", "/users/7", "/users/8", "/users/7/orders", "/users/+7",
    "/a/../b", "/a//b", "/a%2Fb", "/users/%37", "/a;x=1/b", "/users/7/../8", "/c/b",
)  # fmt: skip
ACTORS = (
    "all", "all", "ip", "ip", "ip", "account", "account", "device", "header X-Key", "query q", "query n as int", "cookie c",
    "path", "host",
)  # fmt: skip
PEERS = (
    "203.0.113.9",
    "203.0.113.9",
    "203.0.113.9",
    "203.0.113.10",
    "10.0.0.1",
    "2001:db8::1",
    None,
)
HEADERS = {
    "X-Account-Id": ("alice", "alice", "bob", " bob "),
    "X-Device-Id": ("d1", "d2"),
    "X-Key": ("k1", "k1", "k2", ""),
    "X-Plan": ("free", "pro", "gold"),
    "Host": ("a.example", "B.example:80"),
    "Cookie": ("c=1", "c=2; d=3", "c=1; c=2"),
}
QUERIES = ("", "", "q=1", "q=2&n=7", "n=07", "n=8", "n=x", "q=1&q=2")
VALUES = {
    "ip": ("203.0.113.9", "10.0.0.1"),
    "account": ("alice", "bob"),
    "device": ("d1",),
    "header X-Key": ("k1", "k2"),
    "query q": ("1", "2"),
    "query n as int": ("7",),
    "cookie c": ("1",),
    "host": ("a.example",),
    "path": ("/a", "/a/b"),
    "segment id": ("7",),
}
LISTS = (
    {"ip": ["10.0.0.0/8"]},
    {"header X-Plan": ["pro"]},
    {"account": ["bob"]},
    {"path": ["/a/b"]},
    {"ip": ["203.0.113.10"], "query q": ["2"]},
)
ALGORITHMS = ("TB", "TB", "TB", "LB", "W", "W", "SW", "SL", "C")
UNITS = ("250ms", "second", "second", "7s", "minute", "minute", "hour", "day")
STATUSES = (200, 200, 401, 403, 500, 503)


def random_guard_history(chance: Random) -> GuardHistory:
    rules = _valid(chance, lambda: _rules(chance))
    tallest = max(2, chance.choice((8, 20, 40)))
    sent = [_request(chance) for _ in range(chance.randint(1, 4))]
    now = rules
    steps: list[Step] = []
    for _ in range(chance.randint(2, tallest)):
        found = _steps(chance, now, sent)
        now = next((step.rules for step in found if isinstance(step, Edit)), now)
        steps += found
    return GuardHistory(
        rules,
        tuple(steps),
        apart=chance.random() < 0.5,
        begin_us=BEGIN_US + chance.choice((0, chance.randrange(86_400 * SECOND_US))),
        chance=chance.randrange(1_000),
        tasks=chance.random() < 0.2,
    )


def _valid(chance: Random, invent: Any) -> dict[str, Any]:
    """What is contradictory in one try is not in another."""
    while True:
        rules: dict[str, Any] = invent()
        try:
            load_rules(rules)
        except ConfigError:
            continue
        return rules


def _rules(chance: Random) -> dict[str, Any]:
    names = iter(f"r{number}" for number in range(100))
    rules: dict[str, Any] = {
        "identity": {"tier": "header X-Plan", "trust_tier": True},
        "limits": [_block(chance, names) for _ in range(chance.choice((1, 1, 2, 3)))],
    }
    if chance.random() < 0.3:
        rules["missing"] = chance.choice(("ip", "skip", "deny", "together"))
    if chance.random() < 0.2:
        rules["response"] = {"status": 429, "headers": ["ietf", "legacy", "retry-after"]}
    if chance.random() < 0.1:
        rules["mounts"] = ["/c"]
    return rules


def _block(chance: Random, names: Any) -> dict[str, Any]:
    url = chance.choice(URLS)
    block: dict[str, Any] = {"url": url}
    if chance.random() < 0.15:
        block["methods"] = chance.choice((["GET"], ["POST", "PUT"]))
    if chance.random() < 0.1:
        block["except"] = [url.rstrip("/") + "/c"]
    if chance.random() < 0.1:
        block[chance.choice(("allow", "only", "deny"))] = chance.choice(LISTS)
    block["rules"] = [_rule(chance, url, next(names)) for _ in range(chance.choice((1, 1, 2, 3)))]
    return block


def _rule(chance: Random, url: str, name: str) -> dict[str, Any]:
    algo = chance.choice(ALGORITHMS)
    actor: Any = chance.choice(ACTORS)
    if "{id}" in url and chance.random() < 0.5:
        actor = chance.choice(("segment id", "segment id as int"))
    if chance.random() < 0.15 and actor not in ("all", "ip"):
        actor = ["ip", actor]
    rule: dict[str, Any] = {"name": name, "actor": actor, "algo": algo, **_numbers(chance, algo)}
    if chance.random() < 0.5:
        rule["scope"] = "global"
        if chance.random() < 0.1 and algo != "C":
            rule["drop"] = "random"
    if chance.random() < 0.2:
        rule["mode"] = chance.choice(("shadow", "shadow", "off"))
    if chance.random() < 0.2:
        rule["missing"] = chance.choice(("ip", "skip", "deny", "together"))
    if chance.random() < 0.15:
        rule["cost"] = chance.choice((1, 2, 3))
    if chance.random() < 0.2 and algo not in ("LB", "C"):
        rule["charge_on"] = chance.choice(([401, 403], ["5xx"], [200]))
    if chance.random() < 0.1:
        rule[chance.choice(("allow", "only", "deny"))] = chance.choice(LISTS)
    if chance.random() < 0.2 and isinstance(actor, str) and actor in VALUES:
        values = chance.sample(VALUES[actor], chance.randint(1, len(VALUES[actor])))
        rule["overrides"] = {value: _override(chance, algo) for value in values}
    return rule


def _numbers(chance: Random, algo: str) -> dict[str, Any]:
    """Limit and options, of each tier their own or the same for all."""
    number = "most" if algo == "C" else "rpu"
    found: dict[str, Any] = {number: _number(chance, algo)}
    found["hold" if algo == "C" else "unit"] = chance.choice(UNITS)
    if chance.random() < 0.25:
        found[number] = {tier: _number(chance, algo) for tier in ("free", "pro", "else")}
    if algo == "TB" and chance.random() < 0.4:
        found["burst"] = chance.choice((1, 2, 7, {"pro": 9, "else": 2}))
    if algo == "LB":
        options: tuple[dict[str, Any], ...] = (
            {},
            {"burst": 2},
            {"burst": 5, "delay": 1},
            {"burst": 5, "nodelay": True},
            {"max_wait": "2s"},
        )
        found |= chance.choice(options)
    if algo == "SW" and chance.random() < 0.5:
        found["slices"] = chance.choice((1, 2, 7))
    if algo == "W" and chance.random() < 0.3:
        found["align"] = "first"
    if algo == "C" and chance.random() < 0.3:
        found["retry"] = "1s"
    return found


def _number(chance: Random, algo: str) -> int:
    kind = chance.random()
    if kind < 0.9:
        return chance.choice((1, 2, 3, 5, 10))
    if kind < 0.93 and algo != "C":
        return 0
    return 97 if algo in ("SL", "C") else chance.choice((97, 1_000, 99_991))


def _override(chance: Random, algo: str) -> dict[str, Any]:
    override: dict[str, Any] = {"most" if algo == "C" else "rpu": _number(chance, algo)}
    if algo == "TB" and chance.random() < 0.3:
        override["burst"] = chance.choice((1, 4))
    if chance.random() < 0.3:
        override["until"] = chance.choice(("2023-11-14T22:13:30Z", "2023-11-15", "2100-01-01"))
    return override


def _request(chance: Random) -> Sent:
    headers = tuple(
        (name, chance.choice(values)) for name, values in HEADERS.items() if chance.random() < 0.5
    )
    if chance.random() < 0.05:
        headers += (("X-Account-Id", "eve"),)
    method = chance.choice(("GET", "GET", "GET", "HEAD", "POST"))
    return Sent(chance.choice(PATHS), headers, chance.choice(QUERIES), chance.choice(PEERS), method)


def _steps(chance: Random, rules: dict[str, Any], sent: list[Sent]) -> list[Step]:
    request = chance.choice(sent) if chance.random() < 0.9 else _request(chance)
    kind = chance.random()
    if kind < 0.42:
        return [Check(request)]
    if kind < 0.48:
        return [Check(request)] * chance.randint(2, 8)
    if kind < 0.52:
        return [Look(request)]
    if kind < 0.57:
        return [RefundRequest(_back(chance))]
    if kind < 0.64:
        return [Settle(_back(chance), chance.choice(STATUSES))]
    if kind < 0.67:
        return [Release(_back(chance))]
    if kind < 0.69:
        return [Forget(request, chance.choice((None, None, _name(chance, rules))))]
    if kind < 0.75:
        return [Edit(_valid(chance, lambda: _edited(chance, rules)))]
    if kind < 0.80:
        return [_live_override(chance, rules)]
    if kind < 0.85:
        return [MoveToRetry(chance.choice((-1, 0, 0, 1)))]
    return [Move(_gap(chance, rules))]


def _back(chance: Random) -> int:
    return chance.choice((0, 0, 0, 1, 2, chance.randint(0, 9)))


def _all_rules(rules: dict[str, Any]) -> list[dict[str, Any]]:
    return [rule for block in rules["limits"] for rule in block["rules"]]


def _name(chance: Random, rules: dict[str, Any]) -> str:
    name: str = chance.choice(_all_rules(rules))["name"]
    return name


def _live_override(chance: Random, rules: dict[str, Any]) -> Step:
    rule = chance.choice(_all_rules(rules))
    actor = rule["actor"] if isinstance(rule["actor"], str) else "ip"
    value = chance.choice(VALUES.get(actor, ("7",)))
    if chance.random() < 0.3:
        return RemoveOverride(rule["name"], value)
    burst = chance.choice((None, None, 4)) if rule["algo"] == "TB" else None
    seconds = chance.choice((None, None, 1, 60))
    return SetOverride(rule["name"], value, _number(chance, rule["algo"]), burst, seconds)


def _edited(chance: Random, rules: dict[str, Any]) -> dict[str, Any]:
    edited = deepcopy(rules)
    for rule in _all_rules(edited):
        kind = chance.random()
        if kind < 0.5:
            number = "most" if rule["algo"] == "C" else "rpu"
            if isinstance(rule[number], int):
                rule[number] = _number(chance, rule["algo"])
        elif kind < 0.6:
            for option in (
                "rpu",
                "most",
                "hold",
                "unit",
                "burst",
                "delay",
                "nodelay",
                "max_wait",
                "slices",
                "align",
                "retry",
            ):
                unit = rule.get("unit")
                rule.pop(option, None)
            rule |= _numbers(chance, rule["algo"])
            if unit and chance.random() < 0.7:
                rule["unit"] = unit
        elif kind < 0.7:
            rule["mode"] = chance.choice(("enforce", "shadow", "off"))
    block = chance.choice(edited["limits"])
    if chance.random() < 0.2:
        block["rules"].append(_rule(chance, block["url"], f"r{chance.randint(50, 59)}"))
    elif chance.random() < 0.1 and len(block["rules"]) > 1:
        block["rules"].pop(chance.randrange(len(block["rules"])))
    return edited


def _gap(chance: Random, rules: dict[str, Any]) -> int:
    rule = chance.choice(_all_rules(rules))
    unit_us = micros_from_spelling(rule.get("unit") or rule["hold"])
    number = rule.get("rpu", 1)
    pace = max(1, unit_us // max(1, number if isinstance(number, int) else number["else"]))
    kind = chance.random()
    if kind < 0.12:
        return -chance.choice((1, chance.randint(1, SECOND_US), SECOND_US))
    if kind < 0.16:
        return -chance.choice((2 * SECOND_US, unit_us, 40 * SECOND_US))
    return chance.choice(
        (
            1,
            pace - 1,
            pace,
            pace + 1,
            chance.randint(0, 2 * pace),
            unit_us - 1,
            unit_us,
            chance.randint(0, 2 * unit_us),
            35 * SECOND_US,
        )
    )
