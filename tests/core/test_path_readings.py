"""A path is read in every way an application behind may read it, and the rules of all readings apply."""

from __future__ import annotations

import re
from itertools import product
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diana import Guard, Policy, Request, Verdict
from diana.core.path_readings import MOST_READINGS, PathReading, path_of_segments, readings_of_path
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock

READINGS: list[tuple[str, set[str]]] = [
    ("/search/..", {"/", "/search/.."}),
    ("/search/.", {"/search", "/search/."}),
    ("/find/a%5Cx/results", {"/find/a/x/results", "/find/a\\x/results"}),
    ("/find/a\\x/results", {"/find/a/x/results", "/find/a\\x/results"}),
    ("/find/a%5Cb\\results", {"/find/a/b/results", "/find/a\\b/results", "/find/a\\b\\results"}),
    ("/find/a%2Fb/results", {"/find/a/b/results", "/find/a%2Fb/results"}),
    ("/a;x/b", {"/a/b", "/a;x/b"}),
    ("/a%3Bx/b", {"/a/b", "/a;x/b"}),
    ("/a;x/b%3By", {"/a/b", "/a/b;y", "/a;x/b;y"}),
    ("/a%0Ab", {"/a", "/a\nb"}),
    ("/a%00/b", {"/a/b", "/a\0/b"}),
    ("/a#b", {"/a", "/a#b"}),
    ("//a", {"/a", "//a"}),
    ("/a//b", {"/a/b", "/a//b"}),
    ("/a/b//../c", {"/a/c", "/a/b/c", "/a/b/../c", "/a/b//../c"}),
    ("/a/b/../%2e%2e/c", {"/c", "/a/../c", "/a/b/../../c"}),
    ("/a/..;/b", {"/b", "/a/../b", "/a/..;/b"}),
    ("/a%252Fb", {"/a%252Fb"}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "expected"), READINGS)
def test_readings(path: str, expected: set[str]) -> None:
    readings = readings_of_path(path)
    assert readings is not None
    assert set(map(path_of_segments, readings)) == expected


def test_different_readings_are_different_paths() -> None:
    texts: list[PathReading] = [("a/b",), ("a", "b"), ("a%2Fb",), ("a", "", "b"), ("a%252Fb",), ("", "a"), ()]  # fmt: skip
    assert len({path_of_segments(text) for text in texts}) == len(texts)


def models(path: str) -> set[PathReading]:
    """Readings by an application that takes each class in one of its ways, written down independently, one sign at a time."""
    found = set()
    for slash, back, semicolon, control, dots in product((False, True), repeat=5):
        segments, ended = [""], False
        for sign in re.findall(r"%[0-9A-Fa-f]{2}|.", path, re.DOTALL):
            decoded = chr(int(sign[1:], 16)) if len(sign) == 3 else sign
            if sign == "/" or (decoded == "/" and slash) or (decoded == "\\" and back):
                segments.append("")
                ended = False
            elif (decoded == ";" and semicolon) or (ord(decoded) < 32 and control):
                ended = True
            elif not ended:
                segments[-1] += decoded
        if dots:
            resolved: list[str] = []
            for segment in filter(None, segments):
                if segment == "..":
                    resolved = resolved[:-1]
                elif segment != ".":
                    resolved.append(segment)
            segments = resolved
        found.add(tuple(filter(None, segments)))
    return found


SIGNS = st.sampled_from(["/", "/", "/", "a", "b", "..", ".", "%2e", "%2F", "\\", "%5c", ";", "%3B", "%00", "\n", "%41"])  # fmt: skip


@given(st.lists(SIGNS, max_size=12).map(lambda signs: "/" + "".join(signs)))
@settings(max_examples=1_000, derandomize=True, deadline=None)
def test_every_combination_of_ways_is_among_the_readings(path: str) -> None:
    readings = readings_of_path(path)
    assert readings is None or models(path) <= set(readings)


def policy(*blocks: str, settings: str = "") -> Policy:
    lines = "\n".join(f"  - {{{block}}}" for block in blocks)
    return rules_from_bytes(f"{settings}\nlimits:\n{lines}\n".encode())


def block(url: str, actor: str = "all", more: str = "") -> str:
    return f"url: '{url}', {more} rules: [{{name: '{url}', actor: {actor}, unit: hour, rpu: 1, algo: W}}]"


def names(policy: Policy, path: str, mount: str = "") -> list[str]:
    return [rule.name for rule in policy.match(Request(path=path, mount=mount))]


SEVERAL = policy(
    block("/"), block("/search"), block("/find/{term}/results"), block("/a/{x}/b"), block("/login")
)


@pytest.mark.parametrize(
    ("path", "covering"),
    [
        ("/search/..", ["/", "/search"]),
        ("/search/%2e%2e", ["/", "/search"]),
        ("/find/shoes%5Cx/results", ["/", "/find/{term}/results"]),
        ("/find/shoes\\x/results", ["/", "/find/{term}/results"]),
        ("/find/a%2Fb/results", ["/", "/find/{term}/results"]),
        ("/find/a;b/results", ["/", "/find/{term}/results"]),
        ("/find/;b/results", ["/", "/find/{term}/results"]),
        ("/find/%0A/results", ["/", "/find/{term}/results"]),
        ("/find/../results", ["/", "/find/{term}/results"]),
        ("/find//results", ["/", "/find/{term}/results"]),
        ("/x/../login", ["/", "/login"]),
        ("/login/../search", ["/", "/login", "/search"]),
        ("/a/x/../%2e%2e/b", ["/", "/a/{x}/b"]),
        ("/other", ["/"]),
    ],
)
def test_the_rules_of_all_readings_apply_in_their_order(path: str, covering: list[str]) -> None:
    assert sorted(names(SEVERAL, path)) == sorted(covering)
    ranks = [rule.name for rule in SEVERAL.rules]
    assert names(SEVERAL, path) == sorted(covering, key=ranks.index)


@pytest.mark.parametrize(
    ("path", "limited"),
    [
        ("/health", False),
        ("/health/", False),
        ("/x/../health", True),
        ("/health/..", True),
        ("/health;x", True),
        ("/health%2Fx", True),
        ("/health/a;b", False),
        ("//health", True),
        ("/health%00", True),
    ],
)
def test_except_holds_only_if_all_readings_are_excepted(path: str, limited: bool) -> None:
    assert bool(names(policy(block("/", more="except: [/health],")), path)) is limited


def check(guard: Guard, path: str, mount: str = "") -> Verdict:
    return guard.check(Request(path=path, peer="203.0.113.9", mount=mount))


def guard(*blocks: str, settings: str = "") -> Guard:
    return Guard(policy(*blocks, settings=settings), clock=FakeClock(1_700_000_000_000_000))


def test_a_rule_by_path_is_charged_once_per_different_reading() -> None:
    some = guard(block("/", "path"))
    verdict = check(some, "/find/a%2Fb")
    assert sorted(decision.key for decision in verdict.decisions) == ["=/find/a%2Fb", "=/find/a/b"]
    assert len(verdict.rules) == 2
    assert not check(some, "/find/a/b")
    assert check(some, "/find/c")


def test_a_rule_by_segment_is_charged_once_per_different_value() -> None:
    some = guard(block("/find/{term}", "segment term"))
    verdict = check(some, "/find/a;b/x;y")
    assert sorted(decision.key for decision in verdict.decisions) == ["=a", "=a;b"]
    denied = check(some, "/find/a")
    assert not denied
    assert denied.denial is not None
    assert denied.denial.key == "=a"
    assert not check(some, "/find/a;b")
    assert check(some, "/find/b")


def test_a_rule_by_something_else_is_charged_once() -> None:
    some = guard(block("/", "ip"), block("/find/{term}/results"))
    verdict = check(some, "/find/a%2Fb;c/..")
    assert [decision.key for decision in verdict.decisions if decision.cost] == ["=203.0.113.9"]
    assert len(check(some, "/find/a%2Fb/results").rules) == 2


def test_a_denial_by_one_of_several_values_charges_none() -> None:
    some = guard(block("/find/{term}", "segment term"))
    assert check(some, "/find/a")
    denied = check(some, "/find/a;b")
    assert [bool(decision) for decision in denied.decisions] == [False, True]
    assert denied.denial is denied.decisions[0]
    assert check(some, "/find/a%3Bb%00") is not None


def test_refunding_gives_back_every_value() -> None:
    some = guard(block("/find/{term}", "segment term"))
    some.refund(check(some, "/find/a;b"))
    assert check(some, "/find/a")
    assert check(some, "/find/x;y")


@pytest.mark.parametrize("settings", ["mounts: [/api, '/v1/shop/']", ""])
@pytest.mark.parametrize(
    ("url", "path", "covered"),
    [
        ("/login", "/api/login", True),
        ("/api/login", "/login", True),
        ("/login", "/login", True),
        ("/api/login", "/api/login", True),
        ("/login", "/apis/login", False),
        ("/login", "/api/x/login", False),
        ("/login", "/%61pi/login", True),
        ("/login", "/api//login", True),
        ("/login", "/x/../api/login", True),
    ],
)
def test_with_and_without_the_mount(settings: str, url: str, path: str, covered: bool) -> None:
    rules = policy(block(url), settings=settings)
    assert bool(names(rules, path, mount="" if settings else "/api")) is covered


def test_a_mount_of_several_segments_and_one_under_another() -> None:
    rules = policy(block("/login"), settings="mounts: [/api, /v1/shop]")
    for path in ("/v1/shop/login", "/api/v1/shop/login", "/v1/shop/api/login", "/v1/shop/../login"):
        assert names(rules, path) == ["/login"]
    assert names(rules, "/v1/login") == []
    assert names(rules, "/own/login", mount="/own") == ["/login"]


def test_except_under_a_mount_has_to_name_what_was_sent_and_what_is_meant() -> None:
    one = policy(block("/", more="except: [/health],"), settings="mounts: [/api]")
    assert names(one, "/health") == []
    assert names(one, "/api/health") == ["/"]
    both = policy(block("/", more="except: [/health, /api/health],"), settings="mounts: [/api]")
    assert names(both, "/health") == names(both, "/api/health") == []


def test_a_segment_under_a_mount_is_the_same_value() -> None:
    some = guard(block("/users/{id}", "segment id"), settings="mounts: [/api]")
    assert check(some, "/api/users/7")
    assert not check(some, "/users/7")
    assert check(some, "/users/8")


HOSTILE = {
    "everything": "/a/../;%3b\\%5c%2f%2e%2e#%00",
    "climbing": "/a/..",
    "encoded climbing": "/%2e%2e",
    "parameters": "/a;b",
    "slashes": "/a%2Fb",
    "backslashes": "/a\\b%5Cc",
    "empty": "//a",
    "controls": "/a%00b%1F",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_path_of_8_kib_costs_little_and_stays_limited(piece: str) -> None:
    path = "/login/" + piece * (8_192 // len(piece)) + "/find/x/results"
    SEVERAL.match(Request(path=path))
    spent = []
    for _ in range(5):
        began = process_time()
        SEVERAL.match(Request(path=path))
        spent.append(process_time() - began)
    assert {"/", "/login"} <= set(names(SEVERAL, path))
    assert min(spent) < 0.02, "seconds of processor time"


def test_the_number_of_readings_is_bounded() -> None:
    pieces = HOSTILE["everything"]
    for length in range(1, len(pieces) + 1):
        readings = readings_of_path(pieces[:length])
        assert readings is None or len(readings) <= MOST_READINGS


def test_a_path_with_too_many_readings_is_covered_by_every_rule_whose_words_are_in_it() -> None:
    path = "/find/p;q%3br\\s%5ct/../%2e%2e/x%2fy/results#%00"
    assert readings_of_path(path) is None
    assert names(SEVERAL, path) == ["/", "/find/{term}/results"]
    some = guard(block("/find/{term}", "segment term"), block("/", "path"))
    verdict = check(some, path)
    assert {decision.key for decision in verdict.decisions} == {"?203.0.113.9"}


@given(st.lists(SIGNS, min_size=10, max_size=30).map(lambda signs: "/a/" + "".join(signs)))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_too_many_readings_are_never_covered_by_less_than_all_of_them(path: str) -> None:
    rules = policy(*map(block, ("/", "/a", "/a/b", "/b", "/a/{x}/b", "/b/a", "/aa", "/ab")))
    covering = set(names(rules, path))
    for reading in models(path):
        spelled = path_of_segments(reading)
        if readings_of_path(spelled) == (reading,):
            assert set(names(rules, spelled)) <= covering
