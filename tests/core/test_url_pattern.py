"""Urls in rules: prefixes by whole segments."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diana import ConfigError
from diana.core.path_readings import segments_of_path
from diana.core.url_pattern import SegmentTree, Url, url_from_spelling

SPELLINGS = st.lists(
    st.sampled_from(["a", "b", "{x}", "*", "a.b", "é"]), max_size=4, unique_by=lambda s: s if s == "{x}" else object()
).map(lambda parts: "/" + "/".join(parts))  # fmt: skip
PATHS = st.lists(st.sampled_from(["a", "b", "c", "a.b", "é"]), max_size=5).map(
    lambda parts: "/" + "/".join(parts)
)


def covered(url: Url, path: str) -> bool:
    """What covering means, said in the plainest way."""
    segments = segments_of_path(path)
    return len(segments) >= len(url.segments) and all(
        mine in (None, theirs) for mine, theirs in zip(url.segments, segments, strict=False)
    )


@pytest.mark.parametrize(
    ("spelling", "canonical", "segments", "captures"),
    [
        ("/", "/", (), ()),
        ("/a", "/a", ("a",), ()),
        ("/a/", "/a", ("a",), ()),
        ("//a/./b/../c", "/a/c", ("a", "c"), ()),
        ("/%61", "/a", ("a",), ()),
        ("/a;v=1", "/a", ("a",), ()),
        ("/Ab", "/Ab", ("Ab",), ()),
        ("/users/{id}", "/users/{id}", ("users", None), (("id", 1),)),
        ("/{a}/x/{b_2-c}", "/{a}/x/{b_2-c}", (None, "x", None), (("a", 0), ("b_2-c", 2))),
        ("/*/a/*", "/*/a/*", (None, "a", None), ()),
        ("/*/{x}", "/*/{x}", (None, None), (("x", 1),)),
        ("/%2A/*", "/%2A/*", ("*", None), ()),
        ("/%7bx%7D/{x}", "/%7Bx%7D/{x}", ("{x}", None), (("x", 1),)),
        ("/a%2Ab", "/a%2Ab", ("a*b",), ()),
    ],
)
def test_urls_are_canonical_like_paths(
    spelling: str,
    canonical: str,
    segments: tuple[str | None, ...],
    captures: tuple[tuple[str, int], ...],
) -> None:
    assert url_from_spelling(spelling) == (canonical, segments, captures)


@pytest.mark.parametrize(
    "spelling",
    [
        "", "a", "*", "{x}", "http://a/b", "/a?b", "/a#b", "/a*", "/*a", "/**", "/a{b}", "/{a}b", "/{}", "/{1}",
        "/{a b}", "/{a", "/a}", "/{a}/{a}",
        "/a*%2A",
    ],
)  # fmt: skip
def test_what_is_no_url_is_an_error(spelling: str) -> None:
    with pytest.raises(ConfigError):
        url_from_spelling(spelling)


@pytest.mark.parametrize(
    ("broad", "narrow", "covers"),
    [
        ("/", "/", True),
        ("/", "/a/b", True),
        ("/a", "/a", True),
        ("/a", "/a/b", True),
        ("/a", "/ab", False),
        ("/a", "/", False),
        ("/a/b", "/a", False),
        ("/a", "/A", False),
        ("/*", "/a", True),
        ("/*", "/{x}/b", True),
        ("/{x}", "/*", True),
        ("/a", "/*", False),
        ("/a", "/{a}", False),
        ("/*/b", "/a/b/c", True),
        ("/*/b", "/a/c", False),
        ("/a/*", "/a", False),
        ("/a/*", "/a/b", True),
    ],
)
def test_covers(broad: str, narrow: str, covers: bool) -> None:
    assert url_from_spelling(broad).covers(url_from_spelling(narrow)) is covers


@given(SPELLINGS, SPELLINGS, PATHS)
@settings(max_examples=400, derandomize=True, deadline=None)
def test_what_covers_a_url_covers_whatever_that_url_covers(
    broad: str, narrow: str, path: str
) -> None:
    one, other = url_from_spelling(broad), url_from_spelling(narrow)
    if one.covers(other) and covered(other, path):
        assert covered(one, path)


@given(SPELLINGS)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_a_spelling_reads_as_itself(spelling: str) -> None:
    url = url_from_spelling(spelling)
    assert url_from_spelling(url.spelling) == url
    assert url.covers(url)


@given(st.lists(SPELLINGS, max_size=12), PATHS)
@settings(max_examples=500, derandomize=True, deadline=None)
def test_the_tree_finds_what_asking_every_url_finds(spellings: list[str], path: str) -> None:
    urls = [url_from_spelling(spelling) for spelling in spellings]
    tree = SegmentTree((url, number) for number, url in enumerate(urls))
    found = tree.covering(segments_of_path(path))
    assert sorted(found) == [number for number, url in enumerate(urls) if covered(url, path)]
    lengths = [len(urls[number].segments) for number in found]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("written", ["/a%24", "/%5Ea", "/a.%2A", "/c%5B0-9%5D"])
def test_signs_of_regular_expressions_may_be_percent_encoded(written: str) -> None:
    assert url_from_spelling(written).segments == (unquote(written)[1:],)


@pytest.mark.parametrize("written", ["/v1.0/x", "/odata/$metadata", "/a/(x|y)", "/a+b", "/~user"])
def test_paths_that_only_resemble_regular_expressions(written: str) -> None:
    assert url_from_spelling(written).spelling == written
