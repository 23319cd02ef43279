from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from diana import ConfigError
from diana.runtime.entry_points import algorithm_from_spelling, algorithms, entries, plugin


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


@pytest.mark.parametrize(
    ("group", "name", "package", "extra"),
    [
        ("observers", "prometheus", "prometheus_client", "prometheus"),
        ("stores", "redis", "hiredis", "redis"),
    ],
)
def test_a_missing_package_names_its_own_extra(
    group: str, name: str, package: str, extra: str
) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from diana.runtime.entry_points import plugin\n"
        f"try: plugin({group!r}, {name!r})\n"
        f"except Exception as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == (
        f"{name!r} in diana.{group} needs the package {package}, which is not installed; "
        f"run pip install 'diana-limiter[{extra}]'\n"
    )


def test_of_a_package_that_no_extra_brings_the_name_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "their_store.py").write_text("import no_such_package.inside\n")
    monkeypatch.syspath_prepend(tmp_path)
    theirs = [EntryPoint("theirs", "their_store:Store", "diana.stores")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: theirs)
    entries.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"run pip install no-such-package$"):
            plugin("stores", "theirs")
    finally:
        entries.cache_clear()


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
