from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from diana import ConfigError
from diana.core.plugins import algorithm_from_spelling, algorithms, entries, plugin


@pytest.mark.parametrize("text", ["TB", "tb", "token bucket", "Token  Bucket", " TOKEN BUCKET "])
def test_an_algorithm_is_found_by_letters_or_words(text: str) -> None:
    assert algorithm_from_spelling(text) is algorithms()["TB"]


def test_every_shipped_algorithm_is_registered() -> None:
    assert {"TB", "LB", "W", "SW", "SL"} <= set(algorithms())


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(
        ConfigError, match=r"nothing called 'nope' in diana.stores; there is .*memory"
    ):
        plugin("stores", "nope")


def test_two_packages_that_claim_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = [
        EntryPoint("memory", "one:Store", "diana.stores"),
        EntryPoint("Memory", "other:Store", "diana.stores"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: twice)
    entries.cache_clear()
    try:
        with pytest.raises(ConfigError, match="two packages offer 'Memory'"):
            entries("stores")
    finally:
        entries.cache_clear()
