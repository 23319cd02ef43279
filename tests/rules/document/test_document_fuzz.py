"""Whatever is in a rules file, loading it gives rules or a ConfigError that says where; and soon."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diana import ConfigError, Policy, Request
from diana.core.client_address import Proxies, address_from_text, network_from_spelling
from diana.rules.loading import rules_from_bytes

VALID = [
    b"""\
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
""",
    b"""\
store: memory://
namespace: shop
identity: {account: cookie session, device: header X-Device, trusted_proxies: [10.0.0.0/8, "::1"]}
missing: together
defaults: {algo: LB, max_wait: 2s, cost: 1}
response:
  status: 429
  headers: [ietf, legacy]
  body: {text: "slow down", json: '{"error": "slow down"}'}
limits:
  - url: /users/{id}/*
    methods: [GET, POST]
    except: [/users/me/health, "/users/you/*"]
    rules:
      - {actor: [ip, segment id], unit: 30s, rpu: 100, burst: 8, nodelay: false, delay: 5}
      - actor: query api_key
        unit: day
        rpu: 1000
        algo: sliding window
        slices: 24
        mode: shadow
        name: "keys, by day"
""",
    b"---\nurl: /a\nrules: [{unit: 1m, rpu: 5, algo: sl}]\n---\n- url: /b\n  rules:\n  - {unit: 1h, rpu: 7, body: no}\n",
]
ODD = [
    b"*", b"&a ", b"!!int ", b"? ", b"- ", b": ", b"<<: ", b"[", b"]", b"{", b"}", b"'", b'"', b"|\n", b"%", b"#",
    b"\t", b"\n", b"\r", b"---\n", b"...",
    b"\x00", b"\x07", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80", b"\xc2\x85", b".nan", b".inf", b"yes",
    b"~", b"12:30:45", b"0x10",
    b"-1", b"0", b"99999999999999999999", b"1e3", b"${X}", b"/", b"//", b"{id}", b"' '", b'""', b"segment id",
    b"account", b"[]", b"{}", b"url", b"rules",
    b"limits: ", b"defaults: ", b"identity: ", b"\\ud800", b"%ff", b"%00",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid file after a few bytes or words were changed, lost, doubled or swapped."""
    content = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(content)))
        end = min(len(content), begin + draw(st.integers(0, 30)))
        words = content.split(b" ")
        one, other = (draw(st.integers(0, len(words) - 1)) for _ in range(2))
        match draw(st.sampled_from(["flip", "odd", "lose", "double", "swap", "bytes"])):
            case "flip" if begin < len(content):
                flipped = content[begin] ^ (1 << draw(st.integers(0, 7)))
                content = content[:begin] + bytes([flipped]) + content[begin + 1 :]
            case "odd":
                content = content[:begin] + draw(st.sampled_from(ODD)) + content[end:]
            case "lose":
                content = content[:begin] + content[end:]
            case "double":
                content = content[:end] + content[begin:]
            case "swap":
                words[one], words[other] = words[other], words[one]
                content = b" ".join(words)
            case _:
                content = content[:begin] + draw(st.binary(max_size=4)) + content[begin:]
    return content


def rules_or_mistakes(content: bytes) -> Policy | ConfigError:
    """Anything else is raised; a mistake says where in the file it is."""
    try:
        return rules_from_bytes(content, "diana.yaml", environ={})
    except ConfigError as error:
        mistakes = error
    lines = len(content.decode("utf-8", "replace").splitlines()) + 1
    for each in mistakes.errors:
        assert each.line is not None
        assert each.column is not None
        assert 1 <= each.line <= lines
        assert each.column >= 1
        assert each.message
    return mistakes


@pytest.mark.parametrize("content", VALID)
def test_the_files_that_are_mutated_are_valid(content: bytes) -> None:
    assert rules_from_bytes(content, environ={}).rules


@given(mutated())
@settings(max_examples=400, derandomize=True, deadline=None)
def test_a_mutated_file_gives_rules_or_mistakes_with_places(content: bytes) -> None:
    assert rules_or_mistakes(content)


@pytest.mark.parametrize("content", VALID)
def test_any_odd_word_in_the_place_of_any_other_gives_rules_or_mistakes(content: bytes) -> None:
    for word in re.finditer(rb"[^\s\[\]{},:]+(?: [^\s\[\]{},:]+)*", content):
        for odd in ODD:
            assert rules_or_mistakes(content[: word.start()] + odd + content[word.end() :])


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_what_is_no_rules_file_at_all_is_a_mistake_with_a_place(content: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        rules_from_bytes(content, environ={})
    assert all(each.line and each.column for each in caught.value.errors)


LAUGHS = b"a: &a [x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b", ".join([b"*%c" % (name - 1)] * 9))
    for name in range(ord("b"), ord("k"))
)
RULE = b"url: /\nrules:\n  - unit: second\n    rpu: %s\n"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(LAUGHS, id="a billion laughs"),
        pytest.param(b"[" * 3_000, id="3,000 lists in each other"),
        pytest.param(b"{a: " * 3_000 + b"}" * 3_000, id="3,000 mappings in each other"),
        pytest.param(b"- " * 3_000 + b"a", id="3,000 dashes"),
        pytest.param(b"".join(b" " * n + b"a:\n" for n in range(1_400)), id="1,400 indents"),
        pytest.param(RULE % b"10" + b"    rpu: 10\n" * 500, id="duplicate keys"),
        pytest.param(RULE % b".nan", id=".nan"),
        pytest.param(RULE % b"yes", id="yes"),
        pytest.param(RULE % b"12:30:45", id="12:30:45"),
        pytest.param(RULE % (b"9" * 100_000), id="a number of 100,000 digits"),
        pytest.param(RULE % b"10" * 50_000, id="2 MB of rules"),
        pytest.param(b"#" * 2_000_000, id="2 MB of nothing"),
    ],
)
def test_a_hostile_file_is_refused_within_a_tenth_of_a_second(content: bytes) -> None:
    rules_from_bytes(RULE % b"10")  # what is imported on first use

    def refuse() -> None:
        with pytest.raises(ConfigError):
            rules_from_bytes(content, environ={})

    assert seconds(refuse) < 0.1


def seconds(work: Callable[[], object]) -> float:
    """The best of five: what it takes when nothing else is going on. The garbage collector would look at all that other tests left."""
    times = []
    gc.disable()
    try:
        for _ in range(5):
            started = thread_time()
            work()
            times.append(thread_time() - started)
    finally:
        gc.enable()
    return min(times)


def rules_named(count: int) -> bytes:
    rules = [f"- {{name: n{number}, unit: second, rpu: {number + 1}}}" for number in range(count)]
    return ("url: /\nrules:\n" + "\n".join(rules)).encode()


def repeated(count: int) -> Request:
    return Request(headers=[("x", "1")] * count)


def test_what_a_file_or_a_request_repeats_costs_in_proportion() -> None:
    """Sixteen times as much takes at most sixty-four times as long, not two hundred and fifty-six."""
    for small, large in (
        (lambda: rules_from_bytes(rules_named(250)), lambda: rules_from_bytes(rules_named(4_000))),
        (lambda: repeated(4_000).header_lines("x"), lambda: repeated(64_000).header_lines("x")),
    ):
        assert seconds(large) < 64 * max(seconds(small), 0.001)


def test_what_a_client_sends_is_cut_before_it_is_remembered() -> None:
    proxies = Proxies([network_from_spelling("10.0.0.0/8")])
    before = address_from_text.cache_info().currsize
    for number in range(50):
        proxies.client("10.0.0.1", [f"{'x' * 64}{number}" + "junk" * 10_000])
    assert address_from_text.cache_info().currsize <= before + 2
