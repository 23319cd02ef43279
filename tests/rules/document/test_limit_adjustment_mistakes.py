"""Wrong tiers, overrides, lists and outcomes, and what their authors are told."""

from __future__ import annotations

import pytest

from diana import ConfigError, load_rules
from diana.rules.document.difference import difference
from diana.rules.loading import rules_from_bytes, rules_from_remote

HEAD = "limits:\n- url: /\n  rules:\n  - actor: account\n    unit: minute\n"


def said(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        rules_from_bytes(text.encode(), environ={"SET": "1"})
    return [f"{error.line}:{error.column} {error.message}" for error in caught.value.errors]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("rpu: {free: 60, pro: 600}", "6:10 there is no else; write else: and the number for who has no tier, or another one"),
        ("rpu: {else: 60}", "6:10 there is no tier beside else; write one, or just the number"),
        ("rpu: {free: 1.5, else: 60}", "6:17 '1.5' is no whole number from 0; write digits such as 10"),
        ("rpu: {free: 6, free: 7, else: 6}", "6:20 'free' stands here twice; keep one"),
        ("rpu: {free: 6, Else: 7, else: 6}", "6:29 'else' stands here twice; keep one"),
        (
            "rpu: {free: 6, else: 9}\n    cost: 8",
            "7:11 cost 8 can never pass: the most of the tier 'free' is 6; write at most that",
        ),
        ("rpu: 60\n    overrides: {acme: 5}", "7:23 an override is a mapping; write its numbers as name: value, such as {rpu: 5000}"),
        ("rpu: 60\n    overrides: {acme: {rpm: 5}}", "7:24 'rpm' is no field here; did you mean rpu?"),
        ("rpu: 60\n    overrides: {acme: {burst: 5}}", "7:23 there is no rpu; write rpu: and a number"),
        ("rpu: 60\n    overrides: {}", "7:16 there is no override; write one, or remove the field"),
        (
            "rpu: 60\n    overrides: {acme: {rpu: 5, until: soon}}",
            "7:39 'soon' is no date; write one such as 2026-12-01, or 2026-12-01T18:00:00Z",
        ),
        ("rpu: 60\n    overrides: {acme: {rpu: 5}, acme: {rpu: 6}}", "7:33 'acme' stands here twice; keep one"),
        (
            "rpu: 60\n    algo: W\n    overrides: {acme: {rpu: 5, burst: 2}}",
            "8:17 window (W) has no burst; remove it",
        ),
        ("rpu: 60\n    overrides: {' ': {rpu: 5}}", "7:17 ' ' is no account; write one"),
        ("rpu: 60\n    overrides: {' acme ': {rpu: 5}, acme: {rpu: 6}}", "7:37 'acme' stands here twice; keep one"),
        (
            "rpu: 60\n    overrides: {acme: {rpu: 5, until: 2026-02-30}}",
            "7:39 '2026-02-30' is no date; write one such as 2026-12-01, or 2026-12-01T18:00:00Z",
        ),
        (
            "rpu: 60\n    allow: {ip: 'fe80::1%eth0'}",
            "7:17 'fe80::1%eth0' is no network; write an address or a CIDR such as 10.0.0.0/8 (host bits zero)",
        ),
        ("rpu: 60\n    allow: {}", "7:12 the list is empty; write at least one actor, or remove the field"),
        ("rpu: 60\n    allow: [10.0.0.0/8]", "7:12 a list where a list of clients by actor should be; write its fields as name: value"),
        (
            "rpu: 60\n    allow: {ip: [10.0.0.1/8]}",
            "7:18 '10.0.0.1/8' is no network; write an address or a CIDR such as 10.0.0.0/8 (host bits zero)",
        ),
        (
            "rpu: 60\n    only: {heder X-Plan: free}",
            "7:12 'heder X-Plan' is no actor; did you mean header? write one of account, all, cookie, device, header, host, ip, path, "
            "query, segment",
        ),
        ("rpu: 60\n    allow: {all: x}", "7:13 all is everybody together; write another actor"),
        (
            "rpu: 60\n    allow: {header X-Token: '${UNSET}'}",
            "7:29 ${UNSET} is not set in the environment; set it, or write the value",
        ),
        ("rpu: 60\n    charge_on: [600]", "7:17 '600' is no status; write one such as 401, or a class such as 5xx"),
        ("rpu: 60\n    charge_on: [401, 401]", "7:16 a status stands here twice; keep one"),
        (
            "rpu: 60\n    algo: LB\n    charge_on: 401",
            "8:16 leaky bucket (LB) releases at a steady rate, and what is released cannot be given back; write another algo, or remove it",
        ),
        ("rpu: 60\n    overides: {}", "7:5 'overides' is no field here; did you mean overrides?"),
        ("rpu: 60\n    charge_ons: 401", "7:5 'charge_ons' is no field here; did you mean charge_on?"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_where_it_stands(lines: str, message: str) -> None:
    assert said(f"{HEAD}    {lines}\n") == [message]


def test_overrides_are_by_the_value_of_one_actor() -> None:
    for actor in ("all", "[ip, account]"):
        text = f"url: /\nrules: [{{actor: {actor}, unit: second, rpu: 5, overrides: {{a: {{rpu: 6}}}}}}]"
        (message,) = said(text)
        assert message.endswith(
            "overrides are by the value of one actor; write actor: account, or another single one"
        )
    text = "url: /\nrules: [{actor: ip, unit: second, rpu: 5, overrides: {acme: {rpu: 6}}}]"
    assert said(text) == ["2:55 'acme' is no ip; write one"]
    assert said(text.replace("actor: ip", "actor: path")) == ["2:57 'acme' is no path; write one"]


def test_overrides_are_no_default() -> None:
    text = (
        "defaults: {unit: second, overrides: {a: {rpu: 6}}}\nlimits: [{url: /, rules: [{rpu: 5}]}]"
    )
    (message,) = said(text)
    assert "overrides belong to one rule" in message


@pytest.mark.parametrize("tier", ["header X-Plan", "query plan", "cookie plan", "host"])
def test_a_tier_that_clients_choose_must_be_trusted_on_purpose(tier: str) -> None:
    text = (
        "identity: {tier: %s%s}\nlimits: [{url: /, rules: [{unit: second, rpu: {a: 1, else: 2}}]}]"
    )
    (message,) = said(text % (tier, ""))
    assert "clients choose their" in message
    assert "trust_tier: true" in message
    rules_from_bytes((text % (tier, ", trust_tier: true")).encode())
    (message,) = said(text % ("heder X", ""))
    assert "is no actor; did you mean header?" in message


@pytest.mark.parametrize("kind", ["tier", "account"])
def test_an_identity_tells_clients_apart(kind: str) -> None:
    text = f"identity: {{{kind}: all}}\nlimits: [{{url: /, rules: [{{unit: second, rpu: 5}}]}}]"
    assert said(text) == [
        f"1:{14 + len(kind)} all is everybody together; write what tells clients apart"
    ]


def test_a_remote_document_reads_no_environment() -> None:
    text = b"- url: /\n  allow: {header X-Token: '${SECRET}'}\n  rules: [{unit: second, rpu: 5}]"
    with pytest.raises(ConfigError, match="a remote document cannot read"):
        rules_from_remote(text, environ={"SECRET": "x"})


def test_warnings_of_tiers_that_none_has_and_overrides_that_are_over(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "diana.yaml"
    file.write_text(
        "limits: [{url: /, rules: [{actor: ip, unit: second, rpu: {a: 1, else: 2}, "
        "overrides: {10.0.0.1: {rpu: 5, until: 2020-01-01}, 10.0.0.2: {rpu: 5}}}]}]"
    )
    messages = [warning.message for warning in load_rules(file).warnings]
    assert "identity says no tier: all get else" in messages[0]
    assert messages[1] == "1 of its 2 overrides have ended; remove them"


def test_no_headers_means_none() -> None:
    policy = rules_from_bytes(
        b"response: {headers: []}\nlimits: [{url: /, rules: [{unit: second, rpu: 5}]}]"
    )
    assert policy.settings.answer.headers == ()


def test_what_another_edition_changes_is_told() -> None:
    before = rules_from_bytes(
        b"url: /\nrules: [{name: api, actor: account, unit: second, rpu: {pro: 9, else: 5}, overrides: {a: {rpu: 6}}}]"
    )
    after = rules_from_bytes(
        b"url: /\nrules: [{name: api, actor: account, unit: second, rpu: {pro: 8, else: 5}, charge_on: 5xx,"
        b" allow: {ip: 10.0.0.0/8}, overrides: {a: {rpu: 7}}}]"
    )
    (change,) = difference(before, after)
    assert [field.field for field in change.fields] == ["tiers", "overrides", "allow", "charge_on"]
    assert "tiers pro 9/second → pro 8/second" in str(change)
    assert "allow none → ip (10.0.0.0/8)" in str(change)
