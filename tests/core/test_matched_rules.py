"""Which rules apply to a request, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diana import Policy, Request
from diana.core.path_readings import segments_of_path
from diana.rules.loading import rules_from_bytes


def policy(*blocks: str) -> Policy:
    """A rule per block, called by its number; a block is `/url`, and maybe `; methods: …` and `; except: …`."""
    lines = []
    for number, block in enumerate(blocks):
        url, *fields = block.split("; ")
        lines += [f"- url: '{url}'", *(f"  {field}" for field in fields)]
        lines += ["  rules:", f"    - {{unit: second, rpu: 5, name: '{number}'}}"]
    return rules_from_bytes("\n".join(lines).encode())


def names(rules: Iterable[object]) -> str:
    return " ".join(getattr(rule, "name", "?") for rule in rules)


@pytest.mark.parametrize(
    ("url", "covered", "not_covered"),
    [
        ("/", ["/", "", "/a", "/a/b", "*", "/%ff"], []),
        ("/a", ["/a", "/a/", "/a/b", "/a/b/c", "//a", "/b/../a"], ["/", "/ab", "/b/a", "/A", "/a.", "/b/.."]),
        ("/a/b", ["/a/b", "/a/b/c"], ["/a", "/a/bc", "/b", "/a/x/b"]),
        ("/*", ["/a", "/a/b", "/%ff"], ["/", ""]),
        ("/{x}/b", ["/a/b", "/c/b/d"], ["/b", "/a/c", "/a"]),
        ("/a/*/c", ["/a/b/c", "/a/c/c", "/a/b/c/d"], ["/a/c", "/a/b", "/a/b/b/c"]),
    ],
)  # fmt: skip
def test_a_url_is_a_prefix_by_whole_segments(
    url: str, covered: list[str], not_covered: list[str]
) -> None:
    rules = policy(url)
    assert [path for path in covered if not rules.match(Request(path=path))] == []
    assert [path for path in not_covered if rules.match(Request(path=path))] == []


@pytest.mark.parametrize(
    ("urls", "path", "order"),
    [
        (["/a/b", "/a", "/"], "/a/b", "2 1 0"),
        (["/a", "/a", "/a"], "/a", "0 1 2"),
        (["/a", "/*", "/{x}"], "/a", "1 2 0"),
        (["/a/b", "/a/*", "/*/b", "/*/*"], "/a/b", "3 1 2 0"),
        (["/*/b", "/a/*"], "/a/b", "0 1"),
        (["/a/*/c", "/*/b", "/a"], "/a/b/c", "2 1 0"),
        (["/*/*", "/a"], "/a/b", "1 0"),
        (["/b", "/a", "/"], "/a", "2 1"),
        (["/b"], "/a", ""),
    ],
)
def test_rules_are_asked_from_broad_to_narrow_then_as_in_the_file(
    urls: list[str], path: str, order: str
) -> None:
    assert names(policy(*urls).match(Request(path=path))) == order


def test_all_rules_of_a_policy_stand_in_the_order_in_which_they_are_asked() -> None:
    assert names(policy("/a/b", "/a", "/*", "/", "/b").rules) == "3 2 1 4 0"


@pytest.mark.parametrize(
    ("method", "matched"),
    [
        ("GET", "0 1 3"),
        ("HEAD", "0 1 3"),
        ("POST", "0 2 3"),
        ("DELETE", "0"),
        ("PROPFIND", "0"),
        ("get", "0 1 3"),
        ("Head", "0 1 3"),
    ],
)
def test_methods(method: str, matched: str) -> None:
    rules = policy("/", "/; methods: get", "/; methods: POST", "/; methods: [Get, post]")
    assert names(rules.match(Request(method, "/x"))) == matched


@pytest.mark.parametrize(
    ("path", "matched"),
    [
        ("/", "0 1"),
        ("/healthz", "1"),
        ("/healthz/deep", "1"),
        ("/healthz2", "0 1"),
        ("/a", "0 1 2"),
        ("/a/x/status", "0 1"),
        ("/a/status", "0 1 2"),
        ("/static/x", "1"),
    ],
)
def test_except_leaves_the_rules_of_its_block_alone(path: str, matched: str) -> None:
    rules = policy("/; except: [/healthz, /static]", "/", "/a; except: /a/*/status")
    assert names(rules.match(Request(path=path))) == matched


@pytest.mark.parametrize(
    "path", ["//healthz", "/healthz/..", "/a/../healthz", "/healthz;/x", "/%2e/healthz"]
)
def test_a_detour_to_an_exempted_path_is_not_exempt(path: str) -> None:
    assert names(policy("/; except: /healthz").match(Request(path=path))) == "0"


def test_a_match_is_the_same_when_it_is_remembered_and_when_the_path_is_too_long_to_be() -> None:
    rules = policy("/", "/a", "/b")
    for path in ("/a", "/a", "/a/" + "x" * 1_000, "/a/" + "x" * 1_000):
        assert names(rules.match(Request(path=path))) == "0 1"


WORDS = ["a", "b", "c"]
URLS = st.lists(st.sampled_from([*WORDS, "*"]), max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(
    st.lists(st.tuples(URLS, st.sampled_from([None, "GET", "POST"])), min_size=1, max_size=10),
    st.lists(st.sampled_from([*WORDS, "d"]), max_size=5),
    st.sampled_from(["GET", "HEAD", "POST", "PUT"]),
)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_a_policy_matches_what_asking_every_rule_matches(
    blocks: list[tuple[str, str | None]], path: list[str], method: str
) -> None:
    rules = policy(*(f"{url}; methods: {only}" if only else url for url, only in blocks))
    asked = "GET" if method == "HEAD" else method
    matched = []
    for number, (url, only) in enumerate(blocks):
        parts = [part for part in url.split("/") if part]
        fits = len(parts) <= len(path) and all(
            part in ("*", word) for part, word in zip(parts, path, strict=False)
        )
        if fits and only in (None, asked):
            matched.append((len(parts), sum(part != "*" for part in parts), number))
    request = Request(method, "/" + "/".join(path))
    assert names(rules.match(request)) == " ".join(str(number) for _, _, number in sorted(matched))


def test_ten_thousand_urls_are_told_apart() -> None:
    rules = policy("/", *(f"/shop/{number}" for number in range(1, 10_000)))
    assert names(rules.match(Request(path="/shop/4711/x"))) == "0 4711"
    assert segments_of_path("/shop/4711/x") == ("shop", "4711", "x")
