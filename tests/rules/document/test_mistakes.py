"""Wrong rules files, and what their authors are told: what is wrong, where, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from diana import ConfigError, load_rules
from diana.rules.loading import rules_from_bytes

Told = list[tuple[int, int, str | None, str]]

HEAD = "url: /\nrules:\n  - unit: second\n    rpu: 10\n"
LIMITS = "limits:\n  - url: /\n    rules:\n      - unit: second\n        rpu: 10\n"

NO_VALUE = "there is no value; write one, or remove the field"
NO_TEXT = "a list where a text should be; write one value"
NO_DURATION = "is no duration; write second, minute, hour, day, or a number with ms, s, m, h or d such as 30s or 5m"
RULE_FIELDS = (
    "actor, unit, rpu, algo, scope, cost, when_down, mode, drop, charge_on, missing, status, body, name, "
    "burst, nodelay, delay, max_wait, most, hold, retry, max_waiting, slices, align, overrides, allow, only, deny"
)
ACTORS = "account, all, cookie, device, header, host, ip, path, query, segment"
IN_IDENTITY = "write one of code, cookie, header, host, ip, path, query"
ALGORITHMS = "C (concurrency), LB (leaky bucket), SL (sliding log), SW (sliding window), TB (token bucket), W (window)"


def mistakes(text: str | bytes) -> Told:
    content = text.encode() if isinstance(text, str) else text
    with pytest.raises(ConfigError) as caught:
        rules_from_bytes(content, "diana.yaml", environ={})
    error = caught.value
    told = [(each.line, each.column, each.path, each.message) for each in error.errors]
    assert str(error).splitlines() == [
        f"diana.yaml:{line}:{column}: {f'{path}: ' if path else ''}{message}"
        for line, column, path, message in told
    ]
    assert (error.line, error.column, error.path) == told[0][:3]
    return told  # type: ignore[return-value]  # every mistake of a file has a line and a column


@pytest.mark.parametrize(
    "value",
    [
        "-1", "1.5", "10.0", "1e3", ".nan", ".inf", "yes", "true", "12:30:45", "0x10", "0o10", "010", "+5", "1_000", "1,000", "ten",
        "~", "null", "٥", "10/s",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("field", "least"), [("rpu", 0), ("cost", 1)])
def test_a_number_that_is_no_whole_number_in_digits(field: str, least: int, value: str) -> None:
    lines = ["unit: second", f"{field}: {value}", *(["rpu: 10"] if field != "rpu" else [])]
    text = "url: /\nrules:\n  - " + "\n    ".join(lines) + "\n"
    said = f"{value!r} is no whole number from {least}; write digits such as 10"
    assert mistakes(text) == [(4, 7 + len(field), f"rules[0].{field}", said)]


@pytest.mark.parametrize("value", ["-1", "1.5", ".nan", "no", "1e3"])
@pytest.mark.parametrize(("algo", "field"), [("TB", "burst"), ("LB", "burst"), ("LB", "delay")])
def test_a_size_that_is_no_whole_number_in_digits(algo: str, field: str, value: str) -> None:
    said = f"{value!r} is no whole number from 0; write digits such as 10"
    text = HEAD + f"    algo: {algo}\n    {field}: {value}\n"
    assert mistakes(text) == [(6, 7 + len(field), f"rules[0].{field}", said)]


@pytest.mark.parametrize(
    "value", ["w", "month", "1.5s", "-1s", "12:30:45", ".nan", "٥s", "5 moons"]
)
def test_a_unit_that_is_no_duration(value: str) -> None:
    text = f"url: /\nrules:\n  - unit: {value}\n    rpu: 10\n"
    assert mistakes(text) == [(3, 11, "rules[0].unit", f"{value!r} {NO_DURATION}")]


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("s", "second"),
        ("60", "60s"),
        ("seconds", "second"),
        ("1 minute", "minute"),
        ("5 weeks", "35d"),
    ],
)
def test_a_unit_in_ordinary_words_gets_what_was_meant(value: str, meant: str) -> None:
    text = f"url: /\nrules:\n  - unit: {value}\n    rpu: 10\n"
    said = NO_DURATION.replace("; write", f"; did you mean {meant}? write")
    assert mistakes(text) == [(3, 11, "rules[0].unit", f"{value!r} {said}")]


def test_no_hint_offers_what_is_not_built() -> None:
    ((*_, said),) = mistakes(f"dashbord: 1\n{LIMITS}")
    assert "'dashbord' is no field here; there is " in said
    assert "dashboard" not in said.partition("there is ")[2].split(", ")


def test_an_algorithm_with_a_dash_gets_what_was_meant() -> None:
    said = f"'token-bucket' is no algorithm; did you mean token bucket? write one of {ALGORITHMS}"
    assert mistakes(HEAD + "    algo: token-bucket\n") == [(5, 11, "rules[0].algo", said)]


@pytest.mark.parametrize("value", ["0s", "0ms", "3651d", "99999d"])
def test_a_unit_that_is_out_of_range(value: str) -> None:
    said = f"{value!r} is out of range; a duration is from 1ms to 3650d"
    text = f"url: /\nrules:\n  - unit: {value}\n    rpu: 10\n"
    assert mistakes(text) == [(3, 11, "rules[0].unit", said)]


IN_A_RULE: list[tuple[str, int, int, str, str]] = [
    # what stands below unit and rpu; line and column of the mistake; the field; what is said
    ("rps: 10", 5, 5, "rps", "'rps' is no field here; did you mean rpu?"),
    ("actr: ip", 5, 5, "actr", "'actr' is no field here; did you mean actor?"),
    ("max-wait: 1s", 5, 5, "max-wait", "'max-wait' is no field here; did you mean max_wait?"),
    ("Algorithm: TB", 5, 5, "algorithm", "'Algorithm' is no field here; did you mean algo?"),
    ("zzz: 1", 5, 5, "zzz", f"'zzz' is no field here; there is {RULE_FIELDS}"),
    ("5: 5", 5, 5, "5", f"'5' is no field here; there is {RULE_FIELDS}"),
    ("RPU: 20", 5, 5, "rpu", "'RPU' stands here and in line 4 as 'rpu'; keep one"),
    ("rpu: 10", 5, 5, "rpu", "'rpu' stands here and in line 4 as 'rpu'; keep one"),
    ("algo: W\nburst: 5", 6, 12, "burst", "burst is foreign to window (W), which has align; remove it"),
    ("slices: 5", 5, 13, "slices", "slices is foreign to token bucket (TB), which has burst; remove it"),
    ("nodelay: true", 5, 14, "nodelay", "nodelay is foreign to token bucket (TB), which has burst; remove it"),
    (
        "algo: SL\nburst: 2", 6, 12, "burst",
        "burst is foreign to sliding log (SL), which has no fields of its own; remove it",
    ),
    (
        "algo: leaky bucket\nslices: 4", 6, 13, "slices",
        "slices is foreign to leaky bucket (LB), which has burst, nodelay, delay, max_wait; remove it",
    ),
    ("algo: SW\nalign: first", 6, 12, "align", "align is foreign to sliding window (SW), which has slices; remove it"),
    ("algo: LB\nnodelay: true\ndelay: 2", 7, 12, "delay", "nodelay lets nobody wait, so delay has no meaning; drop one"),
    (
        "algo: LB\nmax_wait: 2s\nnodelay: true", 6, 15, "max_wait",
        "nodelay lets nobody wait, so max_wait has no meaning; drop one",
    ),
    (
        "algo: LB\nburst: 100\nmax_wait: 2s", 7, 15, "max_wait",
        "burst 100 contradicts max_wait 2s: at 10/second the last in the queue waits 10 s; "
        "write a burst of at most 20, a longer max_wait, or only one of them",
    ),
    ("algo: LB\nnodelay: yes", 6, 14, "nodelay", "'yes' is neither true nor false; write one of them"),
    ("algo: LB\nnodelay: 1", 6, 14, "nodelay", "'1' is neither true nor false; write one of them"),
    ("algo: LB\nmax_wait: soon", 6, 15, "max_wait", f"'soon' {NO_DURATION}"),
    ("algo: LB\nmax_wait: 5", 6, 15, "max_wait", f"'5' {NO_DURATION.replace('; write', '; did you mean 5s? write')}"),
    ("algo: LB\nmax_wait: 0s", 6, 15, "max_wait", "'0s' is out of range; a duration is from 1ms to 3650d"),
    ("algo: LB\nmax_wait:", 6, 14, "max_wait", NO_VALUE),
    ("burst: 0", 5, 12, "burst", "burst is 0; a token bucket holds a whole number of tokens from 1"),
    ("algo: SW\nslices: 0", 6, 13, "slices", "'0' is no whole number from 1; write digits such as 10"),
    ("algo: SW\nslices: 1001", 6, 13, "slices", "'1001' is too large; write at most 1000"),
    ("algo: W\nalign: noon", 6, 12, "align", "'noon' is unknown; write one of epoch, first"),
    ("cost: '5'", 5, 11, "cost", "cost must be a number (got '5', a text in quotes); write cost: 5"),
    ("cost: 11", 5, 11, "cost", "cost 11 can never pass: the most is 10; write at most that"),
    ("cost: 6\nburst: 5", 5, 11, "cost", "cost 6 can never pass: the most is 5; write at most that"),
    ("algo: LB\nburst: 2\ncost: 4", 7, 11, "cost", "cost 4 can never pass: the most is 3; write at most that"),
    ("actor: segment id", 5, 12, "actor", "the url / captures nothing; write {id} into it, or name one it captures"),
    ("actor: acount", 5, 12, "actor", f"'acount' is no actor; did you mean account? write one of {ACTORS}"),
    ("actor: nobody", 5, 12, "actor", f"'nobody' is no actor; write one of {ACTORS}"),
    ("actor: ' '", 5, 12, "actor", NO_VALUE),
    ("actor: [ip, all]", 5, 12, "actor", "all is everybody together; write it alone, or remove it"),
    ("actor: [header X-A, Header x-a]", 5, 12, "actor", "an actor stands here twice; keep one"),
    ("actor: header", 5, 12, "actor", "'header' of what? write header NAME"),
    ("actor: Cookie", 5, 12, "actor", "'cookie' of what? write cookie NAME"),
    ("actor: query", 5, 12, "actor", "'query' of what? write query NAME"),
    ("actor: segment", 5, 12, "actor", "'segment' of what? write segment NAME"),
    ("actor: ip address", 5, 12, "actor", "'address' behind 'ip'; write just ip"),
    ("actor: all users", 5, 12, "actor", "'users' behind 'all'; write just all"),
    ("actor: header x y", 5, 12, "actor", "'x y' is no name that HTTP allows; write one such as header X-Tenant"),
    ("actor: cookie a=b", 5, 12, "actor", "'a=b' is no name that HTTP allows; write one such as cookie session"),
    ("actor: [account, actor]", 5, 12, "actor", "an actor stands here twice; keep one"),
    ("actor: []", 5, 12, "actor", "the list is empty; write at least one actor, or remove the field"),
    ("actor: [[ip]]", 5, 13, "actor[0]", NO_TEXT),
    ("actor: {header: X}", 5, 12, "actor", "a mapping where a text should be; write one value"),
    ("actor:", 5, 11, "actor", NO_VALUE),
    ("algo: XX", 5, 11, "algo", f"'XX' is no algorithm; write one of {ALGORITHMS}"),
    ("algo: yes", 5, 11, "algo", f"'yes' is no algorithm; write one of {ALGORITHMS}"),
    ("algo: [TB]", 5, 11, "algo", NO_TEXT),
    ("scope:", 5, 11, "scope", NO_VALUE),
    (
        "drop: random", 5, 11, "drop",
        "drop spares the store, and a rule of scope local asks none; write scope: global or leased, or remove it",
    ),
    ("mode: on", 5, 11, "mode", "'on' is unknown; write one of enforce, shadow, off"),
    ("mode: shaddow", 5, 11, "mode", "'shaddow' is unknown; did you mean shadow? write one of enforce, shadow, off"),
    ("missing: allow", 5, 14, "missing", "'allow' is unknown; write one of ip, skip, deny, together"),
    ("when_down: panic", 5, 16, "when_down", "'panic' is unknown; write one of local, open, closed"),
    ("when_down: close", 5, 16, "when_down", "'close' is unknown; did you mean closed? write one of local, open, closed"),
    ("status: 99", 5, 13, "status", "99 is no status for an answer; write one from 200 to 599, such as 429"),
    ("status: 600", 5, 13, "status", "600 is no status for an answer; write one from 200 to 599, such as 429"),
    ("body:", 5, 10, "body", NO_VALUE),
    ("body: {xml: a}", 5, 12, "body", "'xml' is no kind of body; write text, html or json"),
    ("body: {text: a, Text: b}", 5, 21, "body", "'Text' stands here twice; keep one"),
    (f"name: {'x' * 101}", 5, 11, "name", "a name is at most 100 characters, without line breaks; write another"),
    ("name: [a]", 5, 11, "name", NO_TEXT),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "line", "column", "field", "said"), IN_A_RULE)
def test_a_mistake_in_a_rule(lines: str, line: int, column: int, field: str, said: str) -> None:
    text = HEAD + "".join(f"    {each}\n" for each in lines.split("\n"))
    assert mistakes(text) == [(line, column, f"rules[0].{field}", said)]


NO_PASSWORD = (
    "no user or password in the URL of the rules; set DIANA_RULES_AUTHORIZATION in the environment"
)
IN_A_SETTING: list[tuple[str, int, int, str, str]] = [
    ("store_budget: 1m", 1, 15, "store_budget", "no request should wait so for a store; write from 1ms to 10s"),
    ("store_budget: fast", 1, 15, "store_budget", "'fast' is no duration; "
    "write second, minute, hour, day, or a number with ms, s, m, h or d such as 30s or 5m"),
    ("nodes: 0", 1, 8, "nodes", "'0' is no whole number from 1; write digits such as 10"),
    ("store: redis://:secret@host/x", 1, 8, "store", "behind the host stands the number of a database, such as /0"),
    ("rules_from: {keep: x}", 1, 13, "rules_from", "rules_from has no url; write url: and the URL of the rules"),
    ("rules_from: {url: 'http://x', kept: x}", 1, 31, "rules_from.kept", "'kept' is no field here; did you mean keep?"),
    ("rules_from: http://me:secret@x/", 1, 13, "rules_from", NO_PASSWORD),
    ("rules_from: file://etc/x", 1, 13, "rules_from", "a file is written file:///path/of/rules.yaml, with three slashes"),
    ("filters: []", 1, 10, "filters", "the list is empty; write at least one filter, or remove the field"),
    ("dashboard: on", 1, 12, "dashboard", "dashboard is not built yet in this version; remove it"),
    ("shed:\n  at: 5", 2, 3, "shed", "shed is a list; write each factor behind a dash (-), or default"),
    ("storre: x", 1, 1, "storre", "'storre' is no field here; did you mean store?"),
    ("store: memory://\nSTORE: x://", 2, 1, "store", "'STORE' stands here and in line 1 as 'store'; keep one"),
    ("store:", 1, 7, "store", NO_VALUE),
    ("store: [a]", 1, 8, "store", NO_TEXT),
    ("store: carrier://x", 1, 8, "store", "there is no store for carrier://; write a URL that starts with one of "
    "memory://, redis://, redis+cluster://, redis+sentinel://, rediss://, rediss+cluster://, rediss+sentinel://, shared://, unix://, "
    "valkey://, valkey+cluster://, valkey+sentinel://, valkeys://, valkeys+cluster://, valkeys+sentinel://"),
    ("local_store: memory", 1, 14, "local_store", "local_store must be a URL with a scheme (got 'memory'); write memory://"),
    (
        "store: redis://${DIANA_UNSET}/0", 1, 8, "store",
        "${DIANA_UNSET} is not set in the environment; set it, or write the value",
    ),
    ("namespace: a b", 1, 12, "namespace", "'a b' is no namespace; write up to 64 letters, digits, dots, dashes or underscores"),
    (
        f"namespace: {'x' * 65}", 1, 12, "namespace",
        f"'{'x' * 65}' is no namespace; write up to 64 letters, digits, dots, dashes or underscores",
    ),
    ("mounts: [/]", 1, 10, "mounts[0]", "'/' is no prefix; write one such as /api, in plain words"),
    ("mounts: ['/{x}']", 1, 10, "mounts[0]", "'/{x}' is no prefix; write one such as /api, in plain words"),
    ("mounts: [api]", 1, 10, "mounts[0]", "the url 'api' does not start with /; write /api"),
    ("missing: no", 1, 10, "missing", "'no' is unknown; write one of ip, skip, deny, together"),
    ("identity: x", 1, 11, "identity", "'x' where identity should be; write its fields as name: value"),
    ("response: 429", 1, 11, "response", "response must be a mapping (got 429); write response: {status: 429}"),
    ("defaults: []", 1, 11, "defaults", "a list where defaults should be; write its fields as name: value"),
    (
        "identity:\n  trusted_proxies: 10.0.0.1/8", 2, 20, "identity.trusted_proxies",
        "'10.0.0.1/8' is no network; write an address or a CIDR such as 10.0.0.0/8 (host bits zero)",
    ),
    (
        "identity:\n  trusted_proxies: [10.0.0.0/8, proxy]", 2, 33, "identity.trusted_proxies[1]",
        "'proxy' is no network; write an address or a CIDR such as 10.0.0.0/8 (host bits zero)",
    ),
    (
        "identity:\n  trusted_proxies: []", 2, 20, "identity.trusted_proxies",
        "the list is empty; write at least one network, or remove the field",
    ),
    (
        "identity:\n  account: account", 2, 12, "identity.account",
        "'account' is what is to be found here; write where, such as header X-User",
    ),
    (
        "identity:\n  account: Actor", 2, 12, "identity.account",
        "'Actor' is what is to be found here; write where, such as header X-User",
    ),
    (
        "identity:\n  device: device", 2, 11, "identity.device",
        "'device' is what is to be found here; write where, such as header X-User",
    ),
    ("identity:\n  account: cod", 2, 12, "identity.account", f"'cod' is no actor; did you mean code? {IN_IDENTITY}"),
    ("identity:\n  account: acount", 2, 12, "identity.account", f"'acount' is no actor; {IN_IDENTITY}"),
    ("identity:\n  device: segmnt", 2, 11, "identity.device", f"'segmnt' is no actor; {IN_IDENTITY}"),
    ("identity:\n  tier: heder X-Plan", 2, 9, "identity.tier", f"'heder X-Plan' is no actor; did you mean header? {IN_IDENTITY}"),
    ("identity:\n  account: ip address", 2, 12, "identity.account", "'address' behind 'ip'; write just ip"),
    ("identity:\n  device: header", 2, 11, "identity.device", "'header' of what? write header NAME"),
    ("identity:\n  acount: header X", 2, 3, "identity.acount", "'acount' is no field here; did you mean account?"),
    ("identity:\n  account: ' '", 2, 12, "identity.account", NO_VALUE),
    ("identity:\n  account: [header X]", 2, 12, "identity.account", NO_TEXT),
    ("response:\n  headers: none", 2, 12, "response.headers", "'none' is unknown; write one of ietf, legacy, retry-after"),
    (
        "response:\n  headers: [ietf, retryafter]", 2, 19, "response.headers[1]",
        "'retryafter' is unknown; did you mean retry-after? write one of ietf, legacy, retry-after",
    ),
    ("response:\n  status: 99", 2, 11, "response.status", "99 is no status for an answer; write one from 200 to 599, such as 429"),
    ("response:\n  code: 429", 2, 3, "response.code", "'code' is no field here; there is status, headers, body"),
    ("defaults:\n  rpu: -1", 2, 8, "defaults.rpu", "'-1' is no whole number from 0; write digits such as 10"),
    ("defaults:\n  algo: x", 2, 9, "defaults.algo", f"'x' is no algorithm; write one of {ALGORITHMS}"),
    ("defaults:\n  rps: 5", 2, 3, "defaults.rps", "'rps' is no field here; did you mean rpu?"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "line", "column", "path", "said"), IN_A_SETTING)
def test_a_mistake_in_a_setting(lines: str, line: int, column: int, path: str, said: str) -> None:
    assert mistakes(f"{lines}\n{LIMITS}") == [(line, column, path, said)]


BESIDE_THE_URL: list[tuple[str, int, int, str, str]] = [
    ("url: login", 1, 6, "url", "the url 'login' does not start with /; write /login"),
    ("url: '*'", 1, 6, "url", "the url '*' does not start with /; write /*"),
    ("url: /a?x=1", 1, 6, "url", "the url '/a?x=1' has a query; write the path only, and limit by actor: query NAME"),
    ("url: '/{a}/{a}'", 1, 6, "url", "the url '/{a}/{a}' captures {a} twice; name them apart"),
    ("url: [/a]", 1, 6, "url", NO_TEXT),
    ("Url: /\nurl: /a", 2, 1, "url", "'url' stands here and in line 1 as 'Url'; keep one"),
    ("url: /a\nmethod: GET", 2, 1, "method", "'method' is no field here; did you mean methods?"),
    ("url: /a\nmethods: G3T", 2, 10, "methods", "'G3T' is no method; write one such as POST, or a list: [GET, POST]"),
    ("url: /a\nmethods: [GET, P T]", 2, 16, "methods[1]", "'P T' is no method; write one such as POST, or a list: [GET, POST]"),
    ("url: /a\nmethods: '*'", 2, 10, "methods", "* is no method; remove methods to limit them all"),
    ("url: /a\nmethods: HEAD", 2, 10, "methods", "HEAD counts as GET; write GET"),
    ("url: /a\nmethods: []", 2, 10, "methods", "the list is empty; write at least one method, or remove the field"),
    ("url: /a\nmethods:", 2, 9, "methods", NO_VALUE),
    ("url: /a\nexcept: /b", 2, 9, "except", "/b is not under /a, so it is left alone anyway; remove it"),
    ("url: /a\nexcept: /", 2, 9, "except", "/ leaves alone all of /a; write a longer url"),
    ("url: /a\nexcept: /ab", 2, 9, "except", "/ab is not under /a, so it is left alone anyway; remove it"),
    ("url: /a\nexcept: b", 2, 9, "except", "the url 'b' does not start with /; write /b"),
    ("url: /a\nexcept: []", 2, 9, "except", "the list is empty; write at least one url, or remove the field"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "line", "column", "path", "said"), BESIDE_THE_URL)
def test_a_mistake_beside_the_url(lines: str, line: int, column: int, path: str, said: str) -> None:
    text = f"{lines}\nrules:\n  - unit: second\n    rpu: 10\n"
    assert mistakes(text) == [(line, column, path, said)]


NO_URL_WITH_RULES = "where a url with rules should be; write its fields as name: value"
NO_RULE = "where a rule should be; write its fields as name: value"
EMPTY = "the file is empty; write at least one url with rules"
NO_LIST = "rules is a list; write each rule behind a dash (-)"
SAME = (
    "this rule counts in the counter of the rule in line 3: same name, actor, algo, scope and unit; "
    "give one of them another name, or remove it"
)

WHOLE_FILES: list[tuple[str, Told]] = [
    ("", [(1, 1, None, EMPTY)]),
    ("# nothing\n", [(1, 1, None, EMPTY)]),
    ("---\n---\n", [(1, 1, None, EMPTY)]),
    ("[]\n", [(1, 1, "", "the list is empty; write at least one url with rules")]),
    ("hello\n", [(1, 1, "", f"'hello' {NO_URL_WITH_RULES}")]),
    ("- a\n- 5\n", [(1, 3, "[0]", f"'a' {NO_URL_WITH_RULES}"), (2, 3, "[1]", f"'5' {NO_URL_WITH_RULES}")]),
    ("- - a\n", [(1, 3, "[0]", f"a list {NO_URL_WITH_RULES}")]),
    ("rules:\n  - unit: second\n    rpu: 10\n", [(1, 1, "", "there is no url; write url: and a path such as /")]),
    ("url: /\nrules:\n  - rpu: 10\n", [(3, 5, "rules[0]", "there is no unit; write unit here, such as unit: minute")]),
    ("url: /\nrules:\n  - unit: second\n", [(3, 5, "rules[0]", "there is no rpu; write rpu here, such as rpu: 100")]),
    (
        "url: /\nrules:\n  - actor: ip\n",
        [
            (3, 5, "rules[0]", "there is no unit; write unit here, such as unit: minute"),
            (3, 5, "rules[0]", "there is no rpu; write rpu here, such as rpu: 100"),
        ],
    ),
    ("url: /\nrules: []\n", [(2, 8, "rules", "the list is empty; write at least one rule, or remove the url")]),
    ("url: /\nrules:\n", [(2, 7, "rules", NO_LIST)]),
    ("url: /\nrules:\n  unit: second\n  rpu: 10\n", [(3, 3, "rules", NO_LIST)]),
    ("url: /\nrules: 10/second\n", [(2, 8, "rules", NO_LIST)]),
    ("url: /\nrules:\n  - 10/second\n", [(3, 5, "rules[0]", f"'10/second' {NO_RULE}")]),
    ("url: /\nrules:\n  - [a]\n", [(3, 5, "rules[0]", f"a list {NO_RULE}")]),
    ("limits: []\n", [(1, 9, "limits", "the list is empty; write at least one url with rules")]),
    ("limits: 5\n", [(1, 9, "limits", f"'5' {NO_URL_WITH_RULES}")]),
    ("limits: [5]\n", [(1, 10, "limits[0]", f"'5' {NO_URL_WITH_RULES}")]),
    ("store: memory://\n", [(1, 1, "limits", "there are no limits; write limits: and under it a list of urls with rules")]),
    (
        "url: /u/{user}/{x}\nrules:\n  - unit: second\n    rpu: 10\n    actor: segment id\n",
        [(5, 12, "rules[0].actor", "the url /u/{user}/{x} captures {user}, {x}; write {id} into it, or name one it captures")],
    ),
    (f"{HEAD}  - unit: 1s\n    rpu: 20\n", [(5, 5, "rules[1]", SAME)]),
    (
        "- url: /a\n  rules:\n    - {unit: second, rpu: 3}\n- url: /x/..//a/\n  rules:\n    - {unit: second, rpu: 5}\n",
        [(6, 7, "[1].rules[0]", SAME)],
    ),
    (
        "- url: /a\n  rules:\n    - {unit: day, rpu: 3, name: x}\n- url: /b\n  rules:\n    - {unit: day, rpu: 5, name: x}\n",
        [(6, 7, "[1].rules[0]", SAME)],
    ),
    (f"{HEAD}---\nurl: login\nrules: []\n", [
        (6, 6, "[1].url", "the url 'login' does not start with /; write /login"),
        (7, 8, "[1].rules", "the list is empty; write at least one rule, or remove the url"),
    ]),
    ("url: &a /\nrules: *a\n", [(1, 6, None, "there is an anchor (&); write the value out where it is needed")]),
    ("url: /\nrules: *a\n", [(2, 8, None, "there is an alias (*); write the value out")]),
    ("url: /\nrules: &r\n  - unit: second\n", [(2, 8, None, "there is an anchor (&); write the value out where it is needed")]),
    (f"{HEAD}    <<: *base\n", [(5, 9, None, "there is an alias (*); write the value out")]),
    (f"{HEAD}    actor: !env X\n", [(5, 12, None, "there is a tag (!env); write the plain value")]),
    ("? [a, b]\n: 1\n", [(1, 3, None, "there is a key that is no word; write name: value")]),
    ("url: /\n{a: b}: 1\n", [(2, 1, None, "there is a key that is no word; write name: value")]),
    ("url: /\x07\nrules: []\n", [(1, 7, None, "a character that YAML does not allow; remove it")]),
    ("[" * 32 + "]" * 32, [(1, 2, "[0]", f"a list {NO_URL_WITH_RULES}")]),
    ("[" * 33 + "]" * 33, [(1, 33, None, "there is nesting deeper than 32; no rule needs that")]),
    ("[" * 3_000, [(1, 33, None, "there is nesting deeper than 32; no rule needs that")]),
    ("{a: " * 3_000, [(1, 129, None, "there is nesting deeper than 32; no rule needs that")]),
    ("- " * 3_000, [(1, 65, None, "there is nesting deeper than 32; no rule needs that")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), WHOLE_FILES, ids=lambda value: repr(value)[:40])
def test_a_mistake_in_the_shape_of_the_file(text: str, told: Told) -> None:
    assert mistakes(text) == told


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("url: /\nrules:\n\t- unit: second\n", 3, 1),
        ("url: /\nrules:\n  - unit: second\n   rpu: 10\n", 4, 4),
        ("url: /\nrules:\n  - unit: second\n      rpu: 10\n", 4, 10),
        ("url: /\nrules:\n  - actor: header: X\n", 3, 18),
        ("url: @x\n", 1, 6),
        ('url: "/\\q"\n', 1, 8),
        ('url: "/\\ud800"\n', 1, 10),
        ("url: *\n", 1, 6),
        ("]\n", 1, 1),
    ],
)
def test_what_is_no_yaml_is_a_mistake_where_it_stops_being_yaml(
    text: str, line: int, column: int
) -> None:
    ((at_line, at_column, path, said),) = mistakes(text)
    assert (at_line, at_column, path) == (line, column, None)
    assert said.startswith("this is no YAML: ")


@pytest.mark.parametrize(
    ("content", "line", "column"),
    [
        (b"\xff", 1, 1),
        (b"url: /\nrules: \xff\n", 2, 8),
        ("url: /\n".encode("utf-16"), 1, 1),
        (b"url: /\n# \xc3", 2, 3),
    ],
)
def test_what_is_not_utf8_is_a_mistake_at_its_first_wrong_byte(
    content: bytes, line: int, column: int
) -> None:
    told = [(line, column, None, "this is not UTF-8; save the file as UTF-8")]
    assert mistakes(content) == told


def test_a_file_over_1_mib_is_not_read() -> None:
    padding = b"#" * ((1 << 20) - len(HEAD))
    assert rules_from_bytes(HEAD.encode() + padding).rules
    ((line, column, _, said),) = mistakes(HEAD.encode() + padding + b"#")
    assert (line, column) == (1, 1)
    assert "1 MiB" in said


def test_all_mistakes_are_told_at_once_in_the_order_of_their_lines() -> None:
    text = """\
store: redis://${NOPE}
namespce: a
identity:
  account: account
defaults:
  cost: 0
limits:
  - url: /a
    except: /b
    rules:
      - unit: second
        rpu: -1
      - rpu: 5
        actor: nobody
        rps: 5
  - rules: []
"""
    assert [(line, path) for line, _, path, _ in mistakes(text)] == [
        (1, "store"),
        (2, "namespce"),
        (4, "identity.account"),
        (6, "defaults.cost"),
        (9, "limits[0].except"),
        (12, "limits[0].rules[0].rpu"),
        (13, "limits[0].rules[1]"),
        (14, "limits[0].rules[1].actor"),
        (15, "limits[0].rules[1].rps"),
        (16, "limits[1]"),
        (16, "limits[1].rules"),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_whatever_ends_them(end: str) -> None:
    text = (HEAD + "    rps: 1\n").replace("\n", end)
    assert mistakes(text)[0][:2] == (5, 5)


def test_a_field_that_could_not_be_read_is_not_also_called_missing() -> None:
    text = "url: /\nrules:\n  - unit: w\n    rpu: -1\n"
    assert [path for _, _, path, _ in mistakes(text)] == ["rules[0].unit", "rules[0].rpu"]


def test_a_value_of_any_length_is_shown_short() -> None:
    ((_, _, _, said),) = mistakes(f"url: /\nrules:\n  - unit: second\n    rpu: {'9' * 5_000}\n")
    assert len(said) < 120


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml: cannot be read: No such file"):
        load_rules(tmp_path / "no.yaml")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "url: login\nrules:\n  - {unit: second, rpu: 1, actor: nobody}\n  - {rpu: 1}\n",
            [1, 3, 4],
        ),
        ("url: /\nrules: [{unit: second, rpu: 1, burst: 0, actor: nobody}]", [2, 2]),
        ("url: login\nrules: [{unit: second, rpu: 1, actor: segment id}]", [1]),
    ],
)
def test_one_mistake_does_not_hide_another(text: str, found: list[int]) -> None:
    assert [line for line, *_ in mistakes(text)] == found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("url: /\nexcept: [/, /a]\n", (2, 10, "except[0]", "/ leaves alone all of /; write a longer url")),
        ("url: /a\nexcept: [/a/b, /c]\n", (2, 16, "except[1]", "/c is not under /a, so it is left alone anyway; remove it")),
        ("methods: [any]\nurl: /\n", (1, 11, "methods[0]", "ANY is no method; remove methods to limit them all")),
        ("methods: [GET, get]\nurl: /\n", (1, 16, "methods[1]", "GET stands here twice; keep one")),
        ("store: memory://\nurl: /\n", (1, 1, "", "store is a setting; put it beside limits:, and url and rules under limits:")),
        ("url: http://shop/a\n", (1, 6, "url", "the url 'http://shop/a' names a host; write the path only, and limit by actor: host")),
        ("url: /%ff\n", (1, 6, "url", "the url '/%ff' is no text; write it in UTF-8")),
    ],
)  # fmt: skip
def test_a_mistake_is_placed_at_what_is_wrong(text: str, wanted: tuple[int, int, str, str]) -> None:
    assert mistakes(f"{text}rules: [{{unit: second, rpu: 1}}]") == [wanted]


def test_a_mistake_in_a_default_says_for_which_rule() -> None:
    text = "defaults: {cost: 5}\nlimits:\n  - url: /\n    rules: [{unit: second, rpu: 1}]"
    (found,) = mistakes(text)
    assert found[0] == 1
    assert (
        found[3]
        == "cost 5 can never pass: the most is 1; write at most that (in the rule of line 4)"
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("[" * 100_000, "this is no JSON: too deep; write it as JSON"),
        ("NaN", "this is no JSON: NaN is not allowed; write it as JSON"),
        ("{", "this is no JSON: Expecting property name"),
    ],
)
def test_a_json_body_is_json(body: str, said: str) -> None:
    text = f"url: /\nrules:\n  - unit: second\n    rpu: 1\n    body: {{json: '{body}'}}"
    ((line, column, path, message),) = mistakes(text)
    assert (line, column, path) == (5, 18, "rules[0].body.json")
    assert message.startswith(said)


def test_a_password_is_never_told() -> None:
    text = "store: redis-like://user:hunter2@host/0\nlimits: [{url: /, rules: [{unit: second, rpu: 1}]}]"
    (found,) = mistakes(text)
    assert found[3].startswith(
        "there is no store for redis-like://; write a URL that starts with one of"
    )
    assert "hunter2" not in str(found)


def test_of_very_many_mistakes_the_first_hundred_are_told() -> None:
    assert len(mistakes("url: /\n" * 20_000)) == 100
    assert len(mistakes("\n".join(f"- {number}" for number in range(20_000)))) == 100


@pytest.mark.parametrize(
    ("content", "line", "column"),
    [
        ("url: /\n# 😀😀\x01\n", 2, 5),
        ("# é\x01", 1, 4),
        ("url: '/\nrules: []\n", 1, 6),
    ],
)
def test_what_is_no_yaml_is_placed_where_it_begins(content: str, line: int, column: int) -> None:
    ((at_line, at_column, _, _),) = mistakes(content)
    assert (at_line, at_column) == (line, column)
