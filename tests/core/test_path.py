"""However a client spells a path, it is one place, and has one counter."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diana import Guard, Request
from diana.core.path_readings import path_of_segments, readings_of_path, segments_of_path
from diana.rules.loading import rules_from_bytes
from diana.testing import FakeClock

LOGIN = [
    "/login", "//login", "///login", "/login/", "/login//", "/./login", "/login/.", "/login/./", "/x/../login", "/../login",
    "/../../login", "/x/y/../../login", "/login/x/..", "/%6Cogin", "/%6cogin", "/%6C%6F%67%69%6E", "/login;v=1", "/login;v=1/",
    "/;/login", "/;x=1/login", "/x/..;/login", "/x/..;v=1/login", "/.;/login", "/%2e/login", "/%2E/login",
    "/x/%2e%2e/login", "/x/%2E%2e/login", "/x/.%2e/login",
    "/x/%2e./login", "%2flogin", "/%2Flogin", "/x%2f..%2flogin", "/login%2f", "/login%2F.", "/login%3bv=1",
    "/login%3B", "/\\login", "/x\\..\\login",
    "/%5clogin", "/%5Clogin", "\\login", "/login\x00", "/login%00", "/login%00.html", "/login?",
    "/login?next=/x", "/login?a/../b",
    "/x/../login?y", "login", "./login", "../login", "login/",
]  # fmt: skip

SEGMENTS: list[tuple[str, tuple[str, ...]]] = [
    ("/", ()),
    ("", ()),
    ("//", ()),
    ("/.", ()),
    ("/..", ()),
    ("/%2e%2e", ()),
    ("/;", ()),
    ("/?a", ()),
    ("?a", ()),
    ("/%00", ()),
    ("/a/..", ()),
    ("*", ("*",)),
    ("/a/b", ("a", "b")),
    ("/a//b/../c/", ("a", "c")),
    ("/a/b/..", ("a",)),
    ("/a/../../b", ("b",)),
    ("/a%2fb", ("a", "b")),
    ("/a\\b", ("a", "b")),
    ("/A", ("A",)),
    ("/a.b", ("a.b",)),
    ("/.a", (".a",)),
    ("/...", ("...",)),
    ("/a..", ("a..",)),
    ("/a b", ("a b",)),
    ("/a%20b", ("a b",)),
    ("/a+b", ("a+b",)),
    ("/é", ("é",)),
    ("/%C3%A9", ("é",)),
    ("/%c3%a9", ("é",)),
    ("/%252e%252e/a", ("%2e%2e", "a")),
    ("/%252fa", ("%2fa",)),
    ("/a%253bb", ("a%3bb",)),
    ("/%2500", ("%00",)),
    ("/a%3Fb", ("a?b",)),
    ("/%zz", ("%zz",)),
    ("/%", ("%",)),
    ("/a%2", ("a%2",)),
    ("/%ff", ("\udcff",)),
    ("/%c0%af", ("\udcc0\udcaf",)),
    ("/a/%ff/..", ("a",)),
]


@pytest.mark.parametrize("path", LOGIN)
def test_every_spelling_of_login_is_login(path: str) -> None:
    assert segments_of_path(path) == ("login",)


@pytest.mark.parametrize(("path", "segments"), SEGMENTS)
def test_segments(path: str, segments: tuple[str, ...]) -> None:
    assert segments_of_path(path) == segments


@pytest.mark.parametrize(
    "path", ["/logins", "/log", "/LOGIN", "/x/login", "/%256Cogin", "/login.html", "/lo%20gin"]
)
def test_what_is_elsewhere_is_not_login(path: str) -> None:
    assert segments_of_path(path)[:1] != ("login",)


PIECES = st.sampled_from(
    [
        "/", "//", "\\", "%5c", "%2f", "%2F", ".", "..", "%2e", "%2E", "%252e", ";", ";x=1", "%3b", "?", "%3f", "%00",
        "\x00", "a", "B", "%61", "%ff",
        "%c3", "%a9", "é", "%", "%2", "+", " ", "%25", "%2525", "#", "*", "{x}", "\udcff", "\ud800", "~",
    ]
)  # fmt: skip
PATHS = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=30))


def canonical(segments: tuple[str, ...]) -> str:
    quoted = (quote(segment.encode("utf-8", "surrogateescape"), safe="") for segment in segments)
    return "/" + "/".join(quoted)


@given(PATHS)
@example("/..;/%252e%252e\\x%00")
@settings(max_examples=500, derandomize=True, deadline=None)
def test_a_segment_is_never_empty_nor_a_step_nor_several(path: str) -> None:
    for segment in segments_of_path(path):
        assert segment not in ("", ".", "..")
        assert not set(segment) & set("/\\;\x00")


@given(PATHS.filter(lambda path: not any("\ud800" <= sign < "\udc80" for sign in path)))
@settings(max_examples=500, derandomize=True, deadline=None)
def test_the_canonical_spelling_is_its_own_canonical_spelling(path: str) -> None:
    segments = segments_of_path(path)
    try:
        spelled = canonical(segments)
    except UnicodeEncodeError:  # surrogates that no byte is behind
        return
    assert segments_of_path(spelled) == segments


@given(PATHS, PATHS)
@settings(max_examples=300, derandomize=True, deadline=None)
def test_different_segments_are_different_paths(one: str, other: str) -> None:
    first, second = segments_of_path(one), segments_of_path(other)
    assert (path_of_segments(first) == path_of_segments(second)) == (first == second)


def test_all_spellings_of_login_share_one_counter() -> None:
    policy = rules_from_bytes(
        b"url: /login\nrules:\n  - {unit: hour, rpu: %d, algo: W}\n" % len(LOGIN)
    )
    guard = Guard(policy, clock=FakeClock(1_700_000_000_000_000))
    verdicts = [guard.check(Request("POST", path)) for path in LOGIN]
    assert all(verdicts)
    remaining = [verdict.decisions[0].remaining for verdict in verdicts]
    assert remaining == list(reversed(range(len(LOGIN))))
    assert not any(guard.check(Request("POST", path)) for path in LOGIN)
    assert guard.check(Request("POST", "/elsewhere"))


def test_all_spellings_of_a_path_are_one_to_the_actor_path() -> None:
    policy = rules_from_bytes(b"url: /\nrules:\n  - {unit: hour, rpu: 1, algo: W, actor: path}\n")
    guard = Guard(policy, clock=FakeClock(1_700_000_000_000_000))
    assert [bool(guard.check(Request(path=path))) for path in LOGIN] == [True] + [False] * (
        len(LOGIN) - 1
    )
    assert guard.check(Request(path="/logins"))


@pytest.mark.parametrize("path", ["/%ff", "/a%ff/b", "/%c0%af", "/\udcff"])
def test_a_path_that_cannot_be_decoded_is_limited_by_the_broadest_rules(path: str) -> None:
    guard = Guard(
        rules_from_bytes(b"url: /\nrules:\n  - {unit: hour, rpu: 1, algo: W}\n"),
        clock=FakeClock(1_700_000_000_000_000),
    )
    assert guard.check(Request(path=path))
    assert not guard.check(Request(path=path))


@pytest.mark.parametrize(
    "path", ["/login%00/x", "/x%00/../login", "/login#x", "http://shop.example/login?x"]
)
def test_what_one_server_or_another_takes_for_login_stays_under_login(path: str) -> None:
    assert segments_of_path(path)[:1] == ("login",)


@pytest.mark.parametrize(
    "path", ["/h", "/h/", "/h/%c3%a9", "/h/a.b", "/", "/.well-known/x", "/a%20b"]
)
def test_an_ordinary_path_has_one_reading(path: str) -> None:
    assert readings_of_path(path) == (segments_of_path(path),)


@given(PATHS)
@settings(max_examples=500, derandomize=True, deadline=None)
def test_the_first_reading_is_the_canonical_one(path: str) -> None:
    readings = readings_of_path(path)
    assert readings is None or readings[0] == segments_of_path(path)
