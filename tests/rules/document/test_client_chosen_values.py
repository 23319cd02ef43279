"""A limit per value of what clients choose, and no limit beside it by what they cannot choose: `diana check` warns."""

from __future__ import annotations

import pytest

from diana.core.policy import Warning
from diana.rules.loading import rules_from_bytes

HEADER = "{actor: header X-Api-Key, unit: minute, rpu: 3}"
SAID = (
    "clients can invent values of header X-Api-Key, and no rule limits all values of a client together; "
    "write a rule for the same url and methods by what clients cannot choose, such as {actor: ip, unit: minute, rpu: 30}, "
    "or, if a trusted proxy sets the header, identity: {account: header X-Api-Key} and actor: account"
)


def warnings(text: str) -> tuple[Warning, ...]:
    return rules_from_bytes(text.encode()).warnings


def test_a_limit_by_a_header_alone_is_warned_of_where_it_stands() -> None:
    (warning,) = warnings(f"url: /\nrules:\n  - {HEADER}\n")
    assert warning.message == SAID
    assert warning.position[:] == (3, 13, "rules[0].actor")


@pytest.mark.parametrize(
    ("rule", "invented", "example"),
    [
        ("actor: query key, unit: 30s, rpu: 2", "query key", "{actor: ip, unit: 30s, rpu: 20}"),
        ("actor: query sku as int, unit: day, rpu: 1", "query sku as int", "unit: day, rpu: 10}"),
        ("actor: cookie sid, unit: hour, rpu: 5", "cookie sid", "{actor: ip, unit: hour, rpu: 50}"),
        ("actor: host, unit: hour, rpu: 5", "host", "{actor: ip, unit: hour, rpu: 50}"),
        ("actor: [ip, header X-A], unit: hour, rpu: 5", "header X-A", "unit: hour, rpu: 50}"),
        ("actor: [cookie a, query b], unit: hour, rpu: 5", "cookie a and query b", "rpu: 50}"),
        ("actor: header X-A, algo: C, most: 2", "header X-A", "{actor: ip, algo: C, most: 20}"),
    ],
)
def test_whatever_clients_choose_is_warned_of(rule: str, invented: str, example: str) -> None:
    (warning,) = warnings(f"url: /\nrules: [{{{rule}}}]\n")
    assert warning.message.startswith(f"clients can invent values of {invented}, and no rule ")
    assert f"such as {example}" in warning.message or example in warning.message


def test_a_default_actor_is_warned_of_at_each_rule_that_has_it() -> None:
    text = (
        "defaults: {actor: header X-Api-Key}\n"
        "limits:\n"
        "  - url: /\n"
        "    rules:\n"
        "      - {unit: minute, rpu: 3}\n"
        "      - {unit: hour, rpu: 9}\n"
    )
    assert [warning.position[:] for warning in warnings(text)] == [
        (5, 9, "limits[0].rules[0]"),
        (6, 9, "limits[0].rules[1]"),
    ]


@pytest.mark.parametrize(
    "file",
    [
        f"- {{url: /, rules: [{HEADER}, {{actor: ip, unit: minute, rpu: 9}}]}}",
        f"- {{url: /, rules: [{HEADER}, {{unit: second, rpu: 9, algo: W}}]}}",
        f"- {{url: /, rules: [{HEADER}, {{actor: ip, algo: C, most: 9}}]}}",
        f"- {{url: /a/b, rules: [{HEADER}]}}\n- {{url: /a, rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /a/b, rules: [{HEADER}]}}\n- {{url: /*/b, rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /a/*, rules: [{HEADER}]}}\n- {{url: '/a/{{id}}', rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /, methods: POST, rules: [{HEADER}, {{actor: ip, unit: minute, rpu: 9}}]}}",
        f"- {{url: /, methods: [GET, POST], rules: [{HEADER}]}}\n"
        "- {url: /, methods: GET, rules: [{actor: ip, unit: minute, rpu: 9}]}\n"
        "- {url: /, methods: [POST, PUT], rules: [{actor: ip, unit: hour, rpu: 9}]}",
        f"- {{url: /, except: /h, rules: [{HEADER}]}}\n- {{url: /, except: /h/z, rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /a, rules: [{HEADER}]}}\n- {{url: /, except: /h, rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /, only: {{header X-Beta: [on]}}, rules: [{HEADER}, {{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /, rules: [{HEADER}, {{actor: ip, unit: day, rpu: 9, allow: {{ip: [10.0.0.0/8]}}}}]}}",
    ],
)
def test_a_limit_beside_it_that_no_client_escapes_answers_the_warning(file: str) -> None:
    assert warnings(file) == ()


@pytest.mark.parametrize(
    "file",
    [
        f"- {{url: /, rules: [{HEADER}, {{actor: query q, unit: day, rpu: 9}}]}}",
        f"- {{url: /, rules: [{HEADER}, {{actor: [ip, cookie c], unit: day, rpu: 9}}]}}",
        f"- {{url: /, rules: [{HEADER}, {{actor: path, unit: day, rpu: 9}}]}}",
        f"- {{url: '/{{id}}', rules: [{HEADER}, {{actor: segment id, unit: day, rpu: 9}}]}}",
        f"- {{url: /, rules: [{HEADER}, {{actor: ip, unit: day, rpu: 9, mode: shadow}}]}}",
        f"- {{url: /, rules: [{HEADER}, {{actor: ip, unit: day, rpu: 9, mode: off}}]}}",
        f"- {{url: /, rules: [{HEADER}, {{actor: ip, unit: day, rpu: 9, charge_on: [5xx]}}]}}",
        f"- {{url: /, rules: [{HEADER}, {{actor: ip, unit: day, rpu: 9, only: {{header X-Beta: [on]}}}}]}}",
        f"- {{url: /a, rules: [{HEADER}]}}\n- {{url: /a/b, rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /a/*, rules: [{HEADER}]}}\n- {{url: /a/b, rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /, rules: [{HEADER}]}}\n- {{url: /, methods: GET, rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /, methods: [GET, PUT], rules: [{HEADER}]}}\n- {{url: /, methods: GET, rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /, rules: [{HEADER}]}}\n- {{url: /, except: /h, rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
        f"- {{url: /, except: /h/z, rules: [{HEADER}]}}\n- {{url: /, except: /h, rules: [{{actor: ip, unit: day, rpu: 9}}]}}",
    ],
)
def test_a_limit_that_a_client_escapes_is_no_answer(file: str) -> None:
    assert [
        warning for warning in warnings(file) if "clients can invent values of" in warning.message
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "{actor: ip, unit: minute, rpu: 3}",
        "{actor: path, unit: minute, rpu: 3}",
        "{actor: header X-Api-Key, unit: minute, rpu: 3, mode: shadow}",
        "{actor: header X-Api-Key, unit: minute, rpu: 3, only: {header X-Api-Key: [k1, k2]}}",
    ],
)
def test_what_no_client_can_invent_is_not_warned_of(rule: str) -> None:
    assert warnings(f"url: /\nrules: [{rule}]\n") == ()


def test_a_charge_by_status_is_bounded_by_one_of_the_same_statuses() -> None:
    by_key = "{actor: query user, unit: minute, rpu: 3, charge_on: [401]}"
    by_address = "{actor: ip, unit: minute, rpu: 9, charge_on: [4xx]}"
    assert warnings(f"url: /login\nrules: [{by_key}, {by_address}]\n") == ()


def test_an_account_that_the_file_declares_is_not_warned_of() -> None:
    text = "identity: {account: header X-Api-Key}\nlimits: {url: /, rules: [{actor: account, unit: minute, rpu: 3}]}\n"
    assert warnings(text) == ()
