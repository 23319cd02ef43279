"""The forms a rules file may have, what is left out, and what is legal but suspicious."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from diana import ConfigError, Guard, Policy, Request, load_rules
from diana.core.limit import Limit
from diana.rules.document.http_methods import KNOWN
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock

SECOND_US = 1_000_000
BEGIN_US = 1_700_000_000_000_000

CLASSIC = """\
Url: /
rules:
  - actor: device
    unit: second
    rpu: 10
    algo: TB
    scope: global
  - actor: all
    unit: second
    rpu: 50
    algo: W
    scope: local
"""


def rules(text: str, **environ: str) -> Policy:
    return rules_from_bytes(text.encode(), "diana.yaml", environ=environ)


def shown(text: str) -> list[str]:
    return [str(rule) for rule in rules(text).rules]


def warned(text: str) -> list[tuple[int, str]]:
    return [(warning.position.line, warning.message) for warning in rules(text).warnings]


def test_the_classic_form_is_valid_as_it_stands() -> None:
    policy = rules(CLASSIC)
    assert [str(rule) for rule in policy.rules] == [
        "/: 10/second by device, TB, global",
        "/: 50/second by all, W, local",
    ]
    first = policy.rules[0]
    assert (first.name, first.methods, first.cost, first.missing) == (
        "/ device second", None, 1, "ip",
    )  # fmt: skip
    assert (first.when_down, first.mode, first.status, first.body) == (
        "local", "enforce", None, None,
    )  # fmt: skip
    assert first.meter.limit == Limit(10, SECOND_US)
    assert first.position is not None
    assert first.position[:] == (3, 5, "rules[0]")


def test_the_classic_form_limits() -> None:
    guard = Guard(rules(CLASSIC), clock=FakeClock(BEGIN_US))
    phone = Request(path="/x", headers={"X-Device-Id": "phone"})
    assert [bool(guard.check(phone)) for _ in range(11)] == [True] * 10 + [False]
    others = [Request(path="/", headers={"X-Device-Id": f"d{n}"}) for n in range(41)]
    assert [bool(guard.check(other)) for other in others] == [True] * 40 + [False]


def test_a_list_of_blocks_documents_and_the_full_form_say_the_same() -> None:
    one = "url: /a\n  rules:\n  - {unit: second, rpu: 5}\n"
    other = "url: /b\n  methods: [get, Post]\n  rules:\n  - {unit: 5m, rpu: 7, actor: ip}\n"
    a, b = (block.replace("\n  ", "\n") for block in (one, other))
    expected = ["/a: 5/second by all, TB, local", "/b: 7/5m by ip, TB, local"]
    assert shown(f"- {one}- {other}") == expected
    assert shown(f"{a}---\n{b}") == expected
    assert shown(f"---\n{a}...\n---\n# nothing\n---\n- {other}") == expected
    assert shown(f"limits:\n- {one}- {other}") == expected
    assert shown(a) == expected[:1]
    assert shown("limits:\n" + indent(a, "  ")) == expected[:1]
    assert rules(b).rules[0].methods == frozenset(["GET", "POST"])


@pytest.mark.parametrize("algo", ["tb", "TB", "Token Bucket", "token  bucket", '"TOKEN BUCKET"'])
def test_keys_and_keywords_may_be_written_in_any_case(algo: str) -> None:
    text = f"URL: /A\nRULES:\n  - ACTOR: Device\n    Unit: SECOND\n    RPU: 10\n    ALGO: {algo}\n    Scope: Global\n    Mode: Shadow\n"
    (rule,) = rules(text).rules
    assert str(rule) == "/A: 10/second by device, TB, global"
    assert rule.mode == "shadow"


@pytest.mark.parametrize(
    ("algo", "code"),
    [
        ("w", "W"), ("window", "W"), ("SW", "SW"), ("sliding window", "SW"), ("lb", "LB"), ("Leaky Bucket", "LB"), ("sl", "SL"),
        ("sliding log", "SL"),
    ],
)  # fmt: skip
def test_algorithms_by_code_and_by_name(algo: str, code: str) -> None:
    text = f"url: /\nrules: [{{unit: second, rpu: 10, algo: {algo}}}]\n"
    assert rules(text).rules[0].meter.algorithm.code == code


@pytest.mark.parametrize(
    ("field", "value", "attribute", "expected"),
    [
        ("cost", "3", "cost", 3),
        ("missing", "Deny", "missing", "deny"),
        ("when_down", "closed", "when_down", "closed"),
        ("mode", "shadow", "mode", "shadow"),
        ("status", "429", "status", 429),
        ("name", "mine", "name", "mine"),
        ("scope", "global", "scope", "global"),
        ("actor", "[ip, Header X-A]", "actor", "header x-a + ip"),
        ("actor", "Actor", "actor", "account"),
        ("body", "slow down", "body", ("slow down", None, None)),
        ("body", "{html: <p>no, json: '{}'}", "body", (None, "<p>no", "{}")),
    ],
)
def test_a_field_is_a_rule_s_own_or_the_default(
    field: str, value: str, attribute: str, expected: object
) -> None:
    own = f"limits:\n- url: /\n  rules:\n  - unit: second\n    rpu: 10\n    {field}: {value}\n"
    default = f"defaults:\n  {field}: {value}\nlimits:\n- url: /\n  rules:\n  - {{unit: second, rpu: 10}}\n"
    for text in (own, default):
        assert getattr(rules(text).rules[0], attribute) == expected


def test_a_rule_s_own_field_wins_over_the_default() -> None:
    text = """\
missing: deny
defaults: {unit: minute, rpu: 5, actor: ip, algo: SW, slices: 6, missing: skip}
limits:
  - url: /
    rules:
      - {}
      - {rpu: 7, actor: all, slices: 3, missing: together}
"""
    first, second = rules(text).rules
    assert str(first) == "/: 5/minute by ip, SW, local"
    assert str(second) == "/: 7/minute by all, SW, local"
    assert (first.missing, second.missing) == ("skip", "together")
    assert first.meter.params.slices == 6  # type: ignore[attr-defined]
    assert second.meter.params.slices == 3  # type: ignore[attr-defined]


def test_a_default_that_is_foreign_to_a_rule_s_algorithm_is_meant_for_others() -> None:
    text = """\
defaults: {burst: 3, align: first}
limits:
  - url: /
    rules:
      - {unit: second, rpu: 5, algo: W}
      - {unit: minute, rpu: 5, algo: TB}
"""
    window, bucket = rules(text).rules
    assert window.meter.params.limit == 5
    assert bucket.meter.params.limit == 3


def test_settings_end_up_in_the_policy() -> None:
    text = """\
store: memory://?max_keys=${SOME}${MORE}
local_store: memory://?max_keys=${KEYS}
namespace: shop
missing: skip
identity: {trusted_proxies: [10.0.0.0/8, "::1"]}
response: {status: 429, headers: [Legacy, retry-after], body: {text: no, json: '{"no": 1}'}}
limits:
  - url: /
    rules:
      - {unit: second, rpu: 5, scope: global}
"""
    policy = rules(text, SOME="6", MORE="379", KEYS="9")
    settings = policy.settings
    assert (settings.store, settings.local_store) == (
        "memory://?max_keys=6379",
        "memory://?max_keys=9",
    )
    assert settings.namespace == "shop"
    assert [str(network) for network in settings.proxies.networks] == ["10.0.0.0/8", "::1/128"]
    assert settings.answer.status == 429
    assert settings.answer.headers == ("legacy", "retry-after")
    assert settings.answer.body == ("no", None, '{"no": 1}')
    assert policy.rules[0].missing == "skip"
    assert policy.rules[0].meter.id.startswith("shop:")


def test_settings_have_defaults() -> None:
    settings = rules(CLASSIC).settings
    assert (settings.store, settings.local_store, settings.namespace) == (
        None, "memory://", "diana",
    )  # fmt: skip
    assert settings.proxies.networks == ()
    assert (settings.answer.status, settings.answer.headers) == (503, ("ietf", "retry-after"))
    assert settings.answer.body == (None, None, None)


def test_a_value_from_the_environment_is_a_value_and_no_yaml() -> None:
    text = "store: ${URL}\nlimits: {url: /, rules: [{unit: second, rpu: 1, scope: local}]}\n"
    assert rules(text, URL="memory://?max_keys=5").settings.store == "memory://?max_keys=5"
    with pytest.raises(ConfigError, match="is no memory store"):
        rules(text, URL="memory://a: [b] ${C} # d")


@pytest.mark.parametrize(
    ("block", "rule", "name"),
    [
        ("url: /", "unit: second", "/ all second"),
        ("url: //a/./b/", "unit: 60s", "/a/b all minute"),
        ("url: '/{x}/*'", "unit: 90s, actor: [ip, segment x]", "/{x}/* ip + segment x 90s"),
        ("url: /a\n  methods: [get, POST]", "unit: day, actor: actor", "GET,POST /a account day"),
        ("url: /a", "unit: day, name: 'by hand, daily'", "by hand, daily"),
    ],
)
def test_a_rule_without_a_name_is_called_by_url_methods_actor_and_unit(
    block: str, rule: str, name: str
) -> None:
    (found,) = rules(f"- {block}\n  rules: [{{{rule}, rpu: 5}}]\n").rules
    assert found.name == name


def test_the_identity_of_a_counter_holds_no_rpu_and_no_burst() -> None:
    def id_of(fields: str, settings: str = "namespace: a") -> str:
        text = f"{settings}\nlimits: [{{url: /, rules: [{{unit: second, rpu: 5, {fields}}}]}}]\n"
        return rules(text).rules[0].meter.id

    same = id_of("algo: TB")
    assert id_of("burst: 9") == same
    assert id_of("cost: 2, mode: shadow, status: 429, when_down: open") == same
    others = [
        id_of("name: x"),
        id_of("actor: ip"),
        id_of("algo: LB"),
        id_of("scope: global"),
        id_of("algo: TB", "namespace: b"),
        id_of("algo: SW, slices: 2"),
        id_of("algo: SW, slices: 3"),
        id_of("name: 'x|ip'"),
        id_of("name: x, actor: ip"),
        id_of("name: 'x%7Cip'"),
    ]
    assert len({same, *others}) == len(others) + 1


def test_a_rule_that_is_off_is_not_asked_but_checked() -> None:
    text = "url: /\nrules:\n  - {unit: second, rpu: 1, mode: off}\n  - {unit: minute, rpu: 2}\n"
    policy = rules(text)
    assert [rule.name for rule in policy.rules] == ["/ all minute"]
    guard = Guard(policy, clock=FakeClock(BEGIN_US))
    assert [bool(guard.check(Request())) for _ in range(3)] == [True, True, False]


def test_the_version_changes_with_the_content() -> None:
    version = rules(CLASSIC).version
    assert version == rules(CLASSIC).version
    assert len(version) == 12
    assert rules(CLASSIC.replace("50", "51")).version != version
    guard = Guard(rules(CLASSIC), clock=FakeClock(BEGIN_US))
    assert guard.check(Request()).version == version


def test_a_file_on_disk_is_read_as_its_bytes_are(tmp_path: Path) -> None:
    path = tmp_path / "diana.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + CLASSIC.encode())
    assert [str(rule) for rule in load_rules(path).rules] == shown(CLASSIC)


CHOSEN = (
    "{kind} is read from header {header}, which clients choose themselves; say in identity: {kind}: "
    "what cannot be chosen, or let a trusted proxy set the header"
)


def test_an_identity_that_clients_choose_is_warned_of_once_per_kind() -> None:
    text = """\
url: /
rules:
  - {unit: second, rpu: 5, actor: [ip, device]}
  - {unit: second, rpu: 5, actor: actor}
  - {unit: minute, rpu: 5, actor: device}
"""
    assert warned(text) == [
        (3, CHOSEN.format(kind="device", header="X-Device-Id")),
        (4, CHOSEN.format(kind="account", header="X-Account-Id")),
    ]


@pytest.mark.parametrize("name", ["allow", "only", "deny"])
@pytest.mark.parametrize(
    ("kind", "header"), [("account", "X-Account-Id"), ("device", "X-Device-Id")]
)
def test_a_list_of_an_identity_that_clients_choose_is_warned_of(
    name: str, kind: str, header: str
) -> None:
    said = CHOSEN.format(kind=kind, header=header)
    of_rule = f"url: /\nrules:\n  - {{unit: second, rpu: 5, {name}: {{{kind}: vip}}}}\n"
    of_block = f"url: /\n{name}: {{{kind}: vip}}\nrules: [{{unit: second, rpu: 5}}]\n"
    assert [message for _, message in warned(of_rule)] == [said]
    assert [message for _, message in warned(of_block)] == [said]
    assert (
        warned(
            f"identity: {{{kind}: cookie session}}\nlimits:\n- {of_block.replace(chr(10), chr(10) + '  ')}"
        )
        == []
    )


def test_an_identity_that_the_file_says_is_not_warned_of() -> None:
    text = "limits: {url: /, rules: [{unit: second, rpu: 5, actor: account}]}\n"
    assert len(warned(text)) == 1
    assert warned(f"identity: {{account: cookie session}}\n{text}") == []


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("GTE", "did you mean GET?"),
        ("psot", "did you mean POST?"),
        ("DELET", "did you mean DELETE?"),
        ("PROP-FIND", "did you mean PROPFIND?"),
        ("BREW", "write one such as GET or POST"),
    ],
)
def test_a_method_that_no_request_has_is_warned_of_where_it_stands(written: str, hint: str) -> None:
    text = f"url: /\nmethods: [PUT, {written}]\nrules: [{{unit: second, rpu: 5}}]\n"
    (warning,) = rules(text).warnings
    assert warning.message == f"{written.upper()!r} is no registered method of HTTP; {hint}"
    assert warning.position[:] == (2, 16, "methods[1]")


def test_a_single_unknown_method_is_warned_of_and_keeps_its_meaning() -> None:
    policy = rules("url: /\nmethods: GTE\nrules: [{unit: second, rpu: 5}]\n")
    assert [warning.position[:] for warning in policy.warnings] == [(2, 10, "methods")]
    assert policy.rules[0].methods == frozenset(["GTE"])


def test_methods_of_http_and_webdav_are_known() -> None:
    known = sorted(KNOWN - {"HEAD"})
    assert {"GET", "QUERY", "PROPFIND", "MKCALENDAR", "VERSION-CONTROL", "PURGE"} <= set(known)
    text = f"url: /\nmethods: [{', '.join(known)}]\nrules: [{{unit: second, rpu: 5}}]\n"
    assert warned(text) == []


def test_a_store_without_a_scope_is_warned_of_at_each_rule() -> None:
    text = """\
store: memory://
limits:
  - url: /
    rules:
      - {unit: second, rpu: 5}
      - {unit: minute, rpu: 5, scope: local}
      - {unit: hour, rpu: 5}
"""
    said = (
        "a store is set but this rule has no scope, so it counts on this machine only; "
        "write scope: local or scope: global"
    )
    assert warned(text) == [(5, said), (7, said)]
    assert warned(f"defaults: {{scope: global}}\n{text}") == []


def test_global_without_a_store_is_warned_of_once() -> None:
    text = """\
url: /
rules:
  - {unit: second, rpu: 5}
  - {unit: minute, rpu: 5, scope: global}
  - {unit: hour, rpu: 5, scope: global}
"""
    said = (
        "scope is global but no store is set, so it counts on this machine only; write store: URL"
    )
    assert warned(text) == [(4, said)]


def test_a_store_that_is_required_and_missing_is_warned_of() -> None:
    text = """\
require_store: true
limits:
  - url: /
    rules: [{unit: minute, rpu: 5, scope: global}]
"""
    said = (
        "require_store is true but no store is set, so the start fails unless DIANA_STORE or store= in code names one; "
        "write store: redis://HOST:PORT"
    )
    assert warned(text) == [(1, said)]
    assert warned(text.replace("true", "false"))[0][0] == 4
    assert warned(f"store: redis://localhost\n{text}") == []


def test_a_narrow_limit_above_a_broader_one_is_warned_of() -> None:
    text = """\
- url: /
  rules:
    - {unit: second, rpu: 5}
    - {unit: minute, rpu: 5, actor: ip}
- url: /a/b
  rules:
    - {unit: second, rpu: 6}
    - {unit: minute, rpu: 5, actor: ip}
    - {unit: minute, rpu: 900}
    - {unit: second, rpu: 900, actor: ip}
"""
    said = "6/second is never reached: / allows the same all only 5/second (line 3)"
    assert warned(text) == [(7, said)]


def test_a_broader_limit_in_the_shadow_keeps_nobody_from_a_narrow_one() -> None:
    text = """\
- url: /
  rules: [{unit: second, rpu: 5, mode: shadow}]
- url: /a
  rules: [{unit: second, rpu: 6}]
"""
    assert warned(text) == []


def test_the_classic_form_is_warned_of_as_it_should_be() -> None:
    assert [line for line, _ in warned(CLASSIC)] == [3, 3]


@pytest.mark.parametrize(
    "narrow",
    [
        "- {url: /, except: /a, rules: [{unit: second, rpu: 1}]}\n- {url: /a, rules: [{unit: second, rpu: 5}]}",
        "- {url: /, rules: [{unit: second, rpu: 1, mode: off}]}\n- {url: /a, rules: [{unit: second, rpu: 5}]}",
        "- {url: /, rules: [{unit: second, rpu: 1}]}\n- {url: /a, rules: [{unit: second, rpu: 5, mode: off}]}",
        "- {url: /, methods: POST, rules: [{unit: second, rpu: 1}]}\n- {url: /a, methods: GET, rules: [{unit: second, rpu: 5}]}",
        "- {url: /, rules: [{unit: second, rpu: 1, mode: shadow}]}\n- {url: /a, rules: [{unit: second, rpu: 5}]}",
    ],
)
def test_a_narrow_limit_that_can_be_reached_is_not_warned_of(narrow: str) -> None:
    assert rules_from_bytes(narrow.encode()).warnings == ()


def test_a_broad_url_with_anything_in_it_is_broad_too() -> None:
    text = "- {url: /*, rules: [{unit: second, rpu: 1}]}\n- {url: /a/b, rules: [{unit: second, rpu: 5}]}"
    (warning,) = rules_from_bytes(text.encode()).warnings
    assert (
        warning.message
        == "5/second is never reached: /* allows the same all only 1/second (line 1)"
    )
