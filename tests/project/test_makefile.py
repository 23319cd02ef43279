"""What the targets of the Makefile install: `make run` no more than it runs, `make lowest` the lowest versions that are promised."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def planned(target: str, folder: Path) -> str:
    """What make would do where nothing is set up yet."""
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / ".ci", folder / ".ci", dirs_exist_ok=True)
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_make_run_installs_the_gateway_alone_and_says_so(tmp_path: Path) -> None:
    told = planned("run", tmp_path)
    assert "--editable '.[gateway]'" in told
    assert "installing Diana's gateway" in told
    assert "--group" not in told


def test_make_test_installs_everything(tmp_path: Path) -> None:
    assert "--editable '.[all]' --group dev --group bench" in planned("test", tmp_path)


def test_make_lowest_is_part_of_what_must_be_green(tmp_path: Path) -> None:
    steps = (ROOT / ".ci" / "run").read_text().splitlines()
    assert steps.index("make test") < steps.index("make lowest")
    told = planned("lowest", tmp_path)
    assert "--constraint .venv-lowest/lowest.txt" in told
    assert "tests/web tests/gateway" in told


def test_every_bound_of_an_extra_is_a_constraint() -> None:
    told = subprocess.run(
        [sys.executable, ROOT / ".ci" / "lowest"], capture_output=True, text=True, check=True
    ).stdout
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for extra in ("cli", "django", "fastapi", "prometheus", "zookeeper"):
        (bound,) = extras[extra]
        assert bound.lower().replace(">=", "==") in told.splitlines()
    assert "pyyaml==6.0" in told.splitlines()
    assert "redis==6" in told.splitlines()
    assert "ratelimiter==1.2.0.post0" in told.splitlines(), "with what stands behind the numbers"
