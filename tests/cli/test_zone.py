from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diana import Limiter
from diana.cli.main import diana
from diana.stores.zone.limit_names import path_of_names
from diana.stores.zone.zone_file import path_of_zone
from tests.stores.shared.zones import zone_name


def zone(*arguments: str) -> Result:
    return CliRunner().invoke(diana, ["zone", *arguments])


@pytest.fixture(params=["0", "1"], ids=["python", "whichever"])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with zone_name() as name:
        monkeypatch.setenv("DIANA_NATIVE", request.param)
        limiter = Limiter("2/hour", store=f"shared://{name}?size=4m", name="login")
        for key in ("alice", "bob", "carol"):
            limiter.take(key)
        yield name


def test_it_shows_how_full_a_zone_is_and_of_what(name: str) -> None:
    result = zone(name)
    assert result.exit_code == 0, result.output
    assert f"{path_of_zone(name)}: 4m, made " in result.output
    assert "layout 1" in result.output
    assert "3 keys in 3 of " in result.output
    assert "0 evicted" in result.output
    assert zone(f"shared://{name}?size=4m").output == result.output


def test_the_same_for_programs(name: str) -> None:
    shown = json.loads(zone(name, "--format", "json").output)
    assert {
        "name",
        "path",
        "kind",
        "version",
        "size",
        "created",
        "node",
        "slots",
        "used",
        "keys",
        "evictions",
        "limits",
    } <= set(shown)
    assert (shown["keys"], shown["size"], shown["version"]) == (3, 4 << 20, 1)
    assert shown["limits"] == [{"id": "diana:login|TB|hour", "used": 3}]


def test_a_process_that_has_not_made_the_limits_shows_their_names(name: str) -> None:
    Limiter("9/minute", store=f"shared://{name}", name="search").take("alice")
    code = f"from diana.cli import main; import sys; sys.argv = ['diana', 'zone', {name!r}]; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-2:] == [
        "           3  diana:login|TB|hour",
        "           1  diana:search|TB|minute",
    ]


@pytest.mark.parametrize("spoiled", ["missing", "of others", "a link", "garbage"])
def test_names_are_a_convenience(name: str, spoiled: str, tmp_path: Path) -> None:
    """A file of names that cannot be trusted is not read, not written, and hurts no zone."""
    names = path_of_names(path_of_zone(name))
    names.unlink(missing_ok=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    if spoiled == "of others":
        names.write_text("")
        names.chmod(0o644)
    elif spoiled == "a link":
        names.symlink_to(elsewhere)
    elif spoiled == "garbage":
        names.write_bytes(b"\xff\n00 7\nzz\n" + b"\x1b" * 50)
        names.chmod(0o600)
    code = (
        f"from diana import Limiter; Limiter('9/minute', store='shared://{name}', name='new').take('a');"
        f"from diana.cli import main; import sys; sys.argv = ['diana', 'zone', {name!r}]; main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    is_native = "kind native" in ran.stdout
    is_unknown = is_native and spoiled in ("of others", "a link")
    assert ran.stdout.splitlines()[-1].startswith(
        "           1  #" if is_unknown else "           1  diana:new|TB|minute"
    )
    assert "\x1b" not in ran.stdout
    assert elsewhere.read_text() == ""


def test_it_empties_a_zone_that_is_in_use(name: str) -> None:
    limiter = Limiter("2/hour", store=f"shared://{name}", name="login")
    limiter.take("alice")
    assert not limiter.take("alice")
    assert zone(name, "--empty").output == f"Zone {name} is empty; 3 keys forgotten.\n"
    assert limiter.take("alice").remaining == 1


def test_it_removes_a_zone(name: str) -> None:
    assert zone(name, "--remove").output == f"Zone {name} is removed.\n"
    assert not path_of_zone(name).exists()
    assert not path_of_names(path_of_zone(name)).exists()
    for arguments in ([name], [name, "--empty"], [name, "--remove"]):
        result = zone(*arguments)
        assert (result.exit_code, f"there is no zone {name}" in result.output) == (1, True)
        assert not path_of_zone(name).exists(), "looking makes none"


def test_what_cannot_be_meant_is_said_so() -> None:
    assert "is no name of a zone" in zone("a/b").output
    assert "write --empty or --remove" in zone("a", "--empty", "--remove").output


def test_a_damaged_zone_is_not_shown_but_can_be_removed(name: str) -> None:
    path = path_of_zone(name)
    with path.open("r+b") as file:
        file.write(b"garbage")
    removed = path.with_name(f"{path.name}.copy")
    path.rename(removed)
    path.write_bytes(removed.read_bytes())
    path.chmod(0o600)
    removed.unlink()
    result = zone(name)
    assert (result.exit_code, f"diana zone {name} --remove" in result.output) == (1, True)
    assert zone(name, "--remove").exit_code == 0
