"""No value can be chosen so that two identities share a counter; and no value makes a key long."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diana import Request
from diana.actors import Spelled, key_of
from diana.core.actor import Actor, key_from_parts, key_from_secret, key_from_value

# Short values of the signs that keys are made of, values around the length at which digests begin, and anything.
SIGNS = st.text(st.sampled_from("=#?0123456789ab|,:\x00é\udcff"), max_size=8)
LONG = st.builds(
    lambda sign, length: sign * length, st.sampled_from("a=é\udcff"), st.integers(62, 66)
)
VALUES = st.one_of(SIGNS, LONG, st.text(max_size=100))
ACTORS = st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=3)
SOME = Actor(lambda _, __: lambda _: None)
MEGABYTE = "x" * 1_000_000


def digests(values: list[str]) -> list[str]:
    """The digests themselves, as values: whoever knows how keys are made might try them."""
    return [sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32] for value in values]


def key(actors: list[tuple[str, bool]]) -> str | None:
    spelled = []
    for place, (value, secret) in enumerate(actors):
        key_from = key_from_secret if secret else key_from_value
        spelled.append(
            Spelled(f"header x{place}", lambda _, value=value: value, key_from, SOME)  # type: ignore[misc]
        )
    return key_of(spelled)(Request())


@given(ACTORS, ACTORS)
@example([("1=a", False), ("b", False)], [("1", False), ("=ab", False)])
@example([("a2=b", False)], [("a", False), ("b", False)])
@example([("", False), ("", False)], [("", False), ("", False), ("", False)])
@example([("#" + digests(["a"])[0], False)], [("a", True)])
@example([(digests(["a"])[0], False)], [("a", True)])
@settings(max_examples=1_000, derandomize=True, deadline=None)
def test_different_identities_never_share_a_key(
    one: list[tuple[str, bool]], other: list[tuple[str, bool]]
) -> None:
    shapes_agree = [secret for _, secret in one] == [secret for _, secret in other]
    if one == other:
        assert key(one) == key(other)
    elif shapes_agree or len(one) != len(other):
        assert key(one) != key(other)


@given(VALUES, VALUES)
@settings(max_examples=500, derandomize=True, deadline=None)
def test_a_value_never_has_the_key_of_another_value_s_digest(one: str, other: str) -> None:
    if len(one) <= 64:
        assert one == other or key_from_value(one) != key_from_secret(other)
    assert (key_from_value(one) == key_from_value(other)) == (one == other)
    assert (key_from_secret(one) == key_from_secret(other)) == (one == other)


@given(st.lists(VALUES, min_size=1, max_size=4), st.lists(VALUES, min_size=1, max_size=4))
@settings(max_examples=500, derandomize=True, deadline=None)
def test_parts_of_a_combination_cannot_be_shifted(one: list[str], other: list[str]) -> None:
    first, second = (
        key_from_parts([key_from_value(value) for value in values]) for values in (one, other)
    )
    assert (first == second) == (one == other)


@given(VALUES)
@settings(max_examples=300, derandomize=True, deadline=None)
def test_no_key_looks_like_one_of_somebody_without_an_identity(value: str) -> None:
    for made in (
        key_from_value(value),
        key_from_secret(value),
        key_from_parts([key_from_value(value)]),
    ):
        assert not made.startswith("?")


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("secret", [False, True])
def test_values_of_a_megabyte_give_short_keys(count: int, secret: bool) -> None:
    keys = {key([(f"{MEGABYTE}{end}", secret)] * count) for end in "ab"}
    assert len(keys) == 2
    assert all(made is not None and len(made) < 200 for made in keys)


@pytest.mark.parametrize("length", [0, 1, 64, 65, 256, 257, 100_000])
def test_a_key_of_one_value_has_at_most_65_characters(length: int) -> None:
    assert len(key_from_value("é" * length)) <= 65
    assert len(key_from_secret("é" * length)) == 33


def test_a_secret_is_not_in_its_key_but_anybody_can_compute_it() -> None:
    made = key_from_secret("hunter2")
    assert "hunter2" not in made
    assert made == "#" + sha256(b"hunter2").hexdigest()[:32]
    assert re.fullmatch(r"#[0-9a-f]{32}", made)


def test_everybody_has_one_key_and_who_finds_nothing_has_none() -> None:
    everybody = Spelled("all", lambda _: "", key_from_value, SOME._replace(constant=""))
    nobody = Spelled("header x", lambda _: None, key_from_secret, SOME)
    somebody = Spelled("ip", lambda _: "a", key_from_value, SOME)
    assert key_of([everybody])(Request()) == "="
    assert key_of([nobody])(Request()) is None
    assert key_of([somebody, nobody])(Request()) is None
    assert key_of([nobody, somebody])(Request()) is None
    assert key_of([somebody, somebody])(Request()) == "2=a2=a"
