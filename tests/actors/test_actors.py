"""What each kind of actor finds in a request, and what happens to who has no identity."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from diana import ConfigError, Guard, Policy, Request, Verdict
from diana.actors import actor_from_spelling
from diana.core.actor import RuleContext, key_from_secret, key_from_value
from diana.core.client_address import Proxies
from diana.core.request import Contradiction
from diana.core.url_pattern import url_from_spelling
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock

BEGIN_US = 1_700_000_000_000_000


def found(spelling: str, request: Request, url: str = "/") -> str | None:
    surroundings = RuleContext(
        url_from_spelling(url),
        Proxies(),
        lambda request: request.header("x-user"),
        lambda request: request.header("x-phone"),
    )
    return actor_from_spelling(spelling, surroundings).identity(request)


def guard(rule: str, settings: str = "", url: str = "/") -> Guard:
    text = f"{settings}\nlimits:\n- url: '{url}'\n  rules:\n  - {{unit: hour, rpu: 1, algo: W, {rule}}}\n"
    return Guard(rules_from_bytes(text.encode(), environ={}), clock=FakeClock(BEGIN_US))


def key(verdict: Verdict) -> str:
    return verdict.decisions[0].key


HEADERS: list[tuple[Any, str | None]] = [
    ({}, None),
    ({"X-Tenant": "a"}, "a"),
    ({"x-TENANT": " a\t"}, "a"),
    ({"X-Tenant": ""}, None),
    ({"X-Tenant": "  "}, None),
    ([("X-Tenant", "a"), ("x-tenant", "a ")], "a"),
    ([("X-Tenant", "a"), ("X-Tenant", "")], "a"),
    ([("X-Tenant", "a"), ("X-Other", "b")], "a"),
    ([("X-Tenant", ""), ("X-Tenant", "")], None),
    (iter([("X-Tenant", "a")]), "a"),
]


@pytest.mark.parametrize(("headers", "value"), HEADERS)
def test_header(headers: Any, value: str | None) -> None:
    assert found("header X-Tenant", Request(headers=headers)) == value


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ([], None),
        (["session=abc"], "abc"),
        (["a=1; session=abc; b=2"], "abc"),
        (["a=1;session=abc"], "abc"),
        (['session="abc"'], "abc"),
        (['session="\\141bc"'], "abc"),
        (['session="a\\bc"; session=abc'], "abc"),
        (["session = abc"], "abc"),
        (["session=a=b"], "a=b"),
        (["session="], None),
        (["session"], None),
        ([""], None),
        (["Session=abc"], None),
        (["xsession=abc"], None),
        (["session=abc; session=abc"], "abc"),
        (["session=abc", "a=1"], "abc"),
        (["session=; session=abc"], "abc"),
    ],
)
def test_cookie(lines: list[str], value: str | None) -> None:
    headers = [("Cookie", line) for line in lines]
    assert found("cookie session", Request(headers=headers)) == value


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("", None),
        ("key=a", "a"),
        ("x=1&key=a&y=2", "a"),
        ("key=a+b", "a b"),
        ("key=a%20b", "a b"),
        ("key=a%2Bb", "a+b"),
        ("key=%C3%A9", "é"),
        ("key=%ff", "\udcff"),
        ("%6Bey=a", "a"),
        ("k%65y=a", "a"),
        ("Key=a", None),
        ("key", None),
        ("key=", None),
        ("&&key=a&&", "a"),
        ("key=a=b", "a=b"),
        ("key=a&key=a", "a"),
        ("key=a&key=%61", "a"),
        ("key=a&key=", "a"),
    ],
)
def test_query(query: str, value: str | None) -> None:
    assert found("query key", Request(query=query)) == value


def test_a_query_parameter_may_have_any_name() -> None:
    assert found("query api key[]", Request(query="api+key%5B%5D=a")) == "a"


@pytest.mark.parametrize(
    ("host", "value"),
    [
        ("example.com", "example.com"),
        ("example.com:8080", "example.com"),
        ("EXAMPLE.com", "example.com"),
        ("Example.COM.:80", "example.com"),
        (" example.com ", "example.com"),
        ("203.0.113.9:80", "203.0.113.9"),
        ("", None),
        (":80", None),
        (".", None),
    ],
)
def test_host(host: str, value: str | None) -> None:
    assert found("host", Request(headers={"Host": host})) == value
    assert found("host", Request()) is None


def test_a_host_that_is_an_ipv6_address_is_one_with_and_without_a_port() -> None:
    one, other, third = (
        found("host", Request(headers={"Host": host}))
        for host in ("[2001:DB8::1]:443", "[2001:db8::1]", "[2001:db8::2]")
    )
    assert one == other
    assert one is not None
    assert "2001:db8::1" in one
    assert third != one


@pytest.mark.parametrize(
    ("actor", "request_"),
    [
        ("header X-Tenant", Request(headers=[("X-Tenant", "a"), ("X-Tenant", "b")])),
        ("header X-Tenant", Request(headers=[("X-Tenant", "a"), ("x-tenant", "A")])),
        ("host", Request(headers=[("Host", "a.example"), ("Host", "b.example")])),
        ("cookie session", Request(headers={"Cookie": "session=abc; session=def"})),
        ("cookie session", Request(headers=[("Cookie", "session=abc"), ("Cookie", "session=def")])),
        ("cookie session", Request(headers={"Cookie": "c=1;" * 5_000 + "session=abc"})),
        ("query key", Request(query="key=a&key=b")),
        ("query key", Request(query="key=a&%6bey=b")),
        ("query key", Request(query="&" * 100_000 + "key=a")),
    ],
)
def test_who_says_two_things_or_too_much_contradicts_himself(actor: str, request_: Request) -> None:
    with pytest.raises(Contradiction):
        found(actor, request_)


@pytest.mark.parametrize(
    ("peer", "value"),
    [("203.0.113.9", "203.0.113.9"), ("2001:db8::1", "2001:db8::/64"), (None, None), ("x", None)],
)
def test_ip(peer: str | None, value: str | None) -> None:
    assert found("ip", Request(peer=peer)) == value


@pytest.mark.parametrize(
    ("path", "value"), [("/", "/"), ("//a/./b/", "/a/b"), ("/a%2fb", "/a/b"), ("/%61?x", "/a")]
)
def test_path(path: str, value: str) -> None:
    assert found("path", Request(path=path)) == value


def test_all() -> None:
    assert found("all", Request()) == found("ALL", Request(path="/x", peer="203.0.113.9")) == ""


@pytest.mark.parametrize(
    ("url", "path", "value"),
    [
        ("/users/{id}", "/users/7", "7"),
        ("/users/{id}", "/users/7/orders", "7"),
        ("/users/{id}", "//users/./%37/", "7"),
        ("/{x}/{id}/*", "/a/b/c", "b"),
    ],
)
def test_segment(url: str, path: str, value: str) -> None:
    assert found("segment id", Request(path=path), url) == value


def test_account_and_device_are_whoever_the_file_says() -> None:
    request = Request(headers={"X-User": "alice", "X-Phone": "7"})
    assert (
        found("account", request) == found("actor", request) == found("Actor", request) == "alice"
    )
    assert found("device", request) == "7"
    assert found("account", Request()) is None


@pytest.mark.parametrize(
    ("settings", "actor", "request_"),
    [
        ("", "account", Request(headers={"X-Account-Id": "alice"})),
        ("", "actor", Request(headers={"X-Account-Id": "alice"})),
        ("", "device", Request(headers={"X-Device-Id": "alice"})),
        ("identity: {account: cookie session}", "account", Request(headers={"Cookie": "session=alice"})),
        ("identity: {account: query user}", "actor", Request(query="user=alice")),
        ("identity: {device: Header X-Phone}", "device", Request(headers={"x-phone": "alice"})),
    ],
)  # fmt: skip
def test_an_identity_of_the_file_is_counted_by_its_digest(
    settings: str, actor: str, request_: Request
) -> None:
    some = guard(f"actor: {actor}", settings)
    assert key(some.check(request_)) == key_from_secret("alice")
    assert not some.check(request_)


def test_an_identity_that_the_file_says_replaces_the_header() -> None:
    some = guard("actor: account, missing: deny", "identity: {account: cookie session}")
    assert not some.check(Request(headers={"X-Account-Id": "alice"}))
    assert some.check(Request(headers={"X-Account-Id": "alice", "Cookie": "session=s"}))


@pytest.mark.parametrize("kind", ["header X", "cookie X", "account", "device"])
def test_what_is_secret_is_not_in_a_key(kind: str) -> None:
    headers = {"X": "hunter2", "Cookie": "X=hunter2", "X-Account-Id": "hunter2", "X-Device-Id": "hunter2"}  # fmt: skip
    verdict = guard(f"actor: {kind}").check(Request(headers=headers))
    assert key(verdict) == key_from_secret("hunter2")


def test_a_combination_is_counted_by_all_of_its_parts() -> None:
    some = guard("actor: [ip, header X-Tenant, segment id], missing: deny", url="/{id}")

    def ask(peer: str | None, tenant: str, path: str) -> bool:
        return bool(some.check(Request(path=path, headers={"X-Tenant": tenant}, peer=peer)))

    assert ask("203.0.113.9", "a", "/1")
    assert not ask("203.0.113.9", "a", "/1/x")
    assert ask("203.0.113.8", "a", "/1")
    assert ask("203.0.113.9", "b", "/1")
    assert ask("203.0.113.9", "a", "/2")
    assert not ask(None, "c", "/3"), "a part is missing"
    assert not ask("203.0.113.9", "", "/3"), "a part is missing"


ALICE = Request(headers={"X-Account-Id": "alice"}, peer="203.0.113.9")


def nobody(peer: str | None = "203.0.113.9", **headers: str) -> Request:
    return Request(headers=headers, peer=peer)


def test_missing_ip_counts_by_address_apart_from_all_real_values() -> None:
    some = guard("actor: account")
    assert some.check(ALICE)
    first = some.check(nobody())
    assert first
    assert key(first) == "?203.0.113.9"
    assert not some.check(nobody())
    assert some.check(nobody("203.0.113.8"))
    assert key(some.check(nobody("2001:db8::1"))) == "?2001:db8::/64"
    assert key(some.check(nobody(None))) == "?"
    for name in ("203.0.113.9", "?203.0.113.9", "?"):
        assert some.check(Request(headers={"X-Account-Id": name}))


def test_missing_ip_believes_a_trusted_proxy() -> None:
    some = guard("actor: account", "identity: {trusted_proxies: 10.0.0.0/8}")
    headers = {"X-Forwarded-For": "6.6.6.6, 203.0.113.9"}
    assert key(some.check(Request(headers=headers, peer="10.0.0.1"))) == "?203.0.113.9"


def test_missing_skip_does_not_ask_the_rule() -> None:
    some = guard("actor: account, missing: skip")
    verdicts = [some.check(nobody()) for _ in range(3)]
    assert all(verdicts)
    assert [verdict.rules for verdict in verdicts] == [()] * 3
    assert some.check(ALICE)
    assert not some.check(ALICE)


def test_missing_deny_denies_for_ever_and_charges_nobody() -> None:
    some = guard("actor: account, missing: deny")
    for _ in range(2):
        denied = some.check(nobody())
        assert not denied
        assert denied.denied_by is some.policy.rules[0]
        assert denied.decisions[0].retry_after is None
    assert some.check(ALICE)


def test_missing_deny_charges_no_other_rule() -> None:
    text = "url: /\nrules:\n- {unit: hour, rpu: 1, algo: W}\n- {unit: hour, rpu: 1, actor: account, missing: deny}\n"
    some = Guard(rules_from_bytes(text.encode()), clock=FakeClock(BEGIN_US))
    assert not some.check(nobody())
    assert some.check(ALICE)


def test_missing_together_counts_all_such_in_one() -> None:
    some = guard("actor: account, missing: together")
    assert some.check(ALICE)
    first = some.check(nobody("203.0.113.9"))
    assert first
    assert key(first) == "?"
    assert not some.check(nobody("203.0.113.8"))
    assert some.check(Request(headers={"X-Account-Id": "?"}))


@pytest.mark.parametrize("missing", ["ip", "skip", "deny", "together"])
def test_the_file_says_missing_for_all_rules_and_a_rule_for_itself(missing: str) -> None:
    verdict = guard("actor: account", f"missing: {missing}").check(nobody())
    own = guard(f"actor: account, missing: {missing}", "missing: ip").check(nobody())
    assert (bool(verdict), len(verdict.rules)) == (bool(own), len(own.rules))
    assert [d.key for d in verdict.decisions] == [d.key for d in own.decisions]


@pytest.mark.parametrize(
    ("missing", "keys", "passed"),
    [
        ("ip", ["?203.0.113.2"], [True, True]),
        ("skip", ["?"], [True, False]),
        ("together", ["?"], [True, False]),
        ("deny", ["?"], [False, False]),
    ],
)
def test_a_contradiction_is_counted_as_if_it_were_missing_but_never_skipped(
    missing: str, keys: list[str], passed: list[bool]
) -> None:
    """By address, one client does not lock out all others that contradict themselves."""
    some = guard(f"actor: query sku, missing: {missing}")
    requests = [Request(query=f"sku=1&sku={n}", peer=f"203.0.113.{n}") for n in (2, 3)]
    verdicts = [some.check(request) for request in requests]
    assert [bool(verdict) for verdict in verdicts] == passed
    assert [decision.key for decision in verdicts[0].decisions] == keys
    assert some.check(Request(query="sku=1"))
    assert some.identity_errors == 0


def failing(policy: Policy, identity: Callable[[Request], str | None]) -> Guard:
    broken = [replace(rule, key_of=identity) for rule in policy.rules]
    return Guard(Policy(broken, settings=policy.settings), clock=FakeClock(BEGIN_US))


@pytest.mark.parametrize(
    ("missing", "passed", "keys"),
    [
        ("ip", [True, False, False], ["?203.0.113.9"]),
        ("skip", [True, False, False], ["?203.0.113.9"]),
        ("deny", [False, False, False], ["?"]),
        ("together", [True, False, False], ["?"]),
    ],
)
def test_an_identity_that_fails_is_missing_counted_and_logged_once(
    missing: str, passed: list[bool], keys: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def identity(request: Request) -> str | None:
        raise ZeroDivisionError("no luck")

    policy = rules_from_bytes(
        f"url: /\nrules: [{{unit: hour, rpu: 1, actor: account, missing: {missing}, name: mine}}]\n".encode()
    )
    some = failing(policy, identity)
    with caplog.at_level(logging.WARNING, "diana"):
        verdicts = [some.check(nobody()) for _ in range(3)]
    assert [bool(verdict) for verdict in verdicts] == passed
    assert [decision.key for decision in verdicts[0].decisions] == keys
    assert some.identity_errors == 3
    assert caplog.messages == [
        "finding the account of rule 'mine' failed: ZeroDivisionError('no luck')"
    ]


def test_headers_that_cannot_be_read_are_an_identity_that_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    some = guard("actor: account")
    broken: Any = {"X-Account-Id": 5}
    assert key(some.check(Request(headers=broken, peer="203.0.113.9"))) == "?203.0.113.9"
    assert some.identity_errors == 1
    assert len(caplog.messages) == 1
    assert some.check(ALICE), "who can be read is counted by himself"


def test_one_identity_that_fails_leaves_other_rules_as_they_are() -> None:
    policy = rules_from_bytes(
        b"url: /\nrules:\n- {unit: hour, rpu: 2, algo: W}\n- {unit: hour, rpu: 9, actor: account}\n"
    )

    def identity(request: Request) -> str | None:
        raise KeyError

    rules = [policy.rules[0], replace(policy.rules[1], key_of=identity)]
    some = Guard(Policy(rules), clock=FakeClock(BEGIN_US))
    verdicts = [some.check(nobody()) for _ in range(3)]
    assert [bool(verdict) for verdict in verdicts] == [True, True, False]
    assert [decision.key for decision in verdicts[0].decisions] == ["=", "?203.0.113.9"]


@pytest.mark.parametrize(
    ("spelling", "canonical", "secret"),
    [
        ("IP", "ip", False),
        (" ip ", "ip", False),
        ("Actor", "account", True),
        ("header   X-Tenant ", "header x-tenant", True),
        ("Cookie Session", "cookie Session", True),
        ("QUERY Key", "query Key", False),
        ("Host", "host", False),
        ("Path", "path", False),
    ],
)
def test_spellings(spelling: str, canonical: str, secret: bool) -> None:
    surroundings = RuleContext(url_from_spelling("/"), Proxies(), lambda _: None, lambda _: None)
    actor = actor_from_spelling(spelling, surroundings)
    assert actor.spelling == canonical
    assert actor.key_from is (key_from_secret if secret else key_from_value)


@pytest.mark.parametrize(
    "spelling", ["", " ", "nobody", "header", "header a b", "cookie a;b", "ip x", "segment id", "actor x"]
)  # fmt: skip
def test_what_is_no_actor_is_an_error(spelling: str) -> None:
    with pytest.raises(ConfigError):
        found(spelling, Request())


def test_a_request_that_cannot_be_read_at_all_is_limited_with_the_others() -> None:
    policy = rules_from_bytes(b"url: /\nrules: [{actor: account, unit: hour, rpu: 1}]")
    guard = Guard(policy)
    broken = Request(headers={"X-Account-Id": 5}, peer=5)  # type: ignore[arg-type]
    assert [bool(guard.check(broken)) for _ in range(2)] == [True, False]
    assert guard.identity_errors == 4


@pytest.mark.parametrize("name", ["Authorization", "Proxy-Authorization"])
def test_one_credential_has_one_counter_however_it_is_spelled(name: str) -> None:
    some = guard("actor: account", f"identity: {{account: header {name}}}")
    spellings = ["Bearer x", "bearer x", "BEARER x", "bEaReR  x", "Bearer\tx", " Bearer x "]
    assert [bool(some.check(Request(headers={name: spelled}))) for spelled in spellings] == [
        True,
        *[False] * 5,
    ]
    for other in ("Bearer X", "Basic x", "x"):
        assert some.check(Request(headers={name: other}))


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("7", "7"), ("07", "7"), ("%2B7", "7"), ("-07", "-7"), ("7_0", "70"), ("%EF%BC%97", "7"), ("+7", "7"),
        ("7.0", "7"), ("-07.000", "-7"), ("1_0.0", "10"), ("0" * 64 + "7", "7"), ("0" * 5_000 + "7.0", "7"), ("-0", "0"),
        ("%C2%A07%09", "7"), ("9" * 5_000, "9" * 5_000), ("%D9%A7", "7"),
        ("7.", None), ("7.1", None), ("7_", None), ("_7", "7"), ("0-7", "-7"), ("%2B00_-_7.0", "-7"),
        ("7e0", None), ("x", None), ("", None), ("7&sku=8", Contradiction),
    ],
)  # fmt: skip
def test_a_number_is_one_however_it_is_spelled(query: str, value: Any) -> None:
    request = Request(query=f"sku={query}")
    if value is Contradiction:
        with pytest.raises(Contradiction):
            found("query sku as int", request)
    else:
        assert found("query sku as int", request) == value


@settings(max_examples=2_000, deadline=None)
@given(st.text("079_+-. \t\xa0\u0667\uff17e", max_size=8))
def test_every_integer_that_an_application_reads_is_the_rules_integer(spelling: str) -> None:
    read = set[int]()
    for convert in (int, TypeAdapter(int).validate_python):
        with suppress(ValueError):
            read.add(convert(spelling))
    request = Request(query=urlencode({"sku": spelling}))
    if read:
        assert {found("query sku as int", request)} == {str(number) for number in read}


def test_a_segment_as_a_number() -> None:
    assert found("segment id as INT", Request(path="/users/007"), "/users/{id}") == "7"
    assert found("segment id as int", Request(path="/users/me"), "/users/{id}") is None
    with pytest.raises(ConfigError, match=r"captures \{id\}; write \{name\} into it"):
        found("segment name as int", Request(), "/users/{id}")
