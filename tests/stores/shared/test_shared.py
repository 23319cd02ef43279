"""`shared://`: the contract of all stores, and what is a zone's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diana import ConfigError, Guard, Limiter, Request
from diana.stores import open_store
from diana.stores.zone.store import SharedStore, ZoneAddress, zone_kind
from diana.stores.zone.zone_file import path_of_zone
from diana.testing import FakeClock, store_contract
from tests.servers.waiting import until
from tests.stores.shared.zones import zone_name


@pytest.fixture(params=["python", "native"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind that this machine has; the native one only where it was built."""
    monkeypatch.setenv("DIANA_NATIVE", "0" if request.param == "python" else "1")
    return str(zone_kind().kind)


@pytest.fixture
def name() -> Iterator[str]:
    with zone_name() as name:
        yield name


def test_it_keeps_the_contract(kind: str, name: str) -> None:
    def empty() -> SharedStore:
        store = SharedStore(name, 4 << 20)
        store.clear()
        return store

    store_contract(empty)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("shared://api", ZoneAddress("api", None)),
        ("shared://a.B-c_9/", ZoneAddress("a.B-c_9", None)),
        ("SHARED://api?size=64m", ZoneAddress("api", 64 << 20)),
    ],
)
def test_urls(url: str, address: ZoneAddress) -> None:
    assert SharedStore.check_url(url) == address


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("shared://", "is no name of a zone"),
        ("shared://a b", "is no name of a zone"),
        ("shared://../etc", "is no zone; write shared://NAME"),
        ("shared://a?sise=64m", "is no zone; write shared://NAME"),
        ("shared://a?size=64", "size is '64'; write one from 4m to 64g"),
        ("shared://a?size=", "size is ''; write one from 4m to 64g"),
    ],
)
def test_urls_that_cannot_be_meant(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        open_store(url)


def test_a_limiter_needs_a_name_there(kind: str, name: str) -> None:
    with pytest.raises(ConfigError, match="give the limit a name="):
        Limiter("1/minute", store=f"shared://{name}?size=4m")


def test_limiters_of_one_name_count_together_also_after_one_was_closed(
    kind: str, name: str
) -> None:
    url, clock = f"shared://{name}?size=4m", FakeClock(1_700_000_000_000_000)
    one = Limiter("2/minute", store=url, name="calls", clock=clock)
    two = Limiter("2/minute", store=url, name="calls", clock=clock)
    assert one.take("k")
    one.close()
    assert two.take("k")
    assert not two.take("k")
    del one, two
    three = Limiter("2/minute", store=url, name="calls", clock=clock)
    assert not three.take("k"), "the count outlives those who counted"


def test_what_was_counted_is_told(kind: str, name: str) -> None:
    store = SharedStore(name, 4 << 20)
    limiter = Limiter("2/minute", store=store, name="calls")
    for key in "abc":
        limiter.take(key)
    counts = store.counts()
    assert (counts["keys"], counts["used"], counts["evictions"]) == (3, 3, 0)
    assert counts["slots"] > 10_000


RULES = """
local_store: shared://{zone}?size=4m
limits:
  - url: /
    rules:
      - {{name: ours, unit: hour, rpu: {rpu}, algo: {algo}}}
"""


def test_rules_count_in_the_zone_of_the_file_or_of_the_code(
    kind: str, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(RULES.format(zone=name, rpu=2, algo="TB"))
    request = Request("GET", "/", [], "", "10.0.0.1")
    first, second = Guard.from_file(file), Guard.from_file(file)
    assert [bool(guard.check(request).allowed) for guard in (first, second, first)] == [
        True,
        True,
        False,
    ]
    assert first.counts_for_machine
    alone = Guard.from_file(file, local_store="memory://")
    assert alone.check(request).allowed
    assert not alone.counts_for_machine
    store = SharedStore(name)
    third = Guard.from_file(file, local_store=store)
    assert not third.check(request).allowed
    for guard in (first, second, third, alone):
        guard.close()
    assert store.counts()["keys"] == 1


def test_what_does_not_fit_is_refused_when_the_rules_are_loaded_and_the_old_ones_stay(
    kind: str, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "diana.yaml"
    file.write_text(RULES.format(zone=name, rpu=10_001, algo="SL"))
    with pytest.raises(ConfigError, match=r"at most 10,000 entries") as refused:
        Guard.from_file(file)
    assert refused.value.line == 6
    file.write_text(RULES.format(zone=name, rpu=5, algo="SL"))
    guard = Guard.from_file(file)
    file.write_text(RULES.format(zone=name, rpu=10_001, algo="SL"))
    until(lambda: guard.problems, "the mistake is seen")
    assert guard.policy.rules[0].rpu == 5
    file.write_text(RULES.format(zone=name, rpu=6, algo="SL"))
    until(lambda: guard.policy.rules[0].rpu == 6, "right rules are taken again")
    until(lambda: not guard.problems, "the mistake is forgotten")
    guard.close()


def test_without_the_native_kind_everything_is_there(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIANA_NATIVE", "0")
    assert SharedStore(name, 4 << 20).file.header.kind == "python"
    assert path_of_zone(name).stat().st_size == 4 << 20
