"""The C part under AddressSanitizer and UndefinedBehaviorSanitizer: what they find ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FLAGS = [
    "-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-pthread", "-fno-strict-aliasing", "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
]  # fmt: skip


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("sanitized") / "_native.abi3.so"
    sources = sorted(map(str, (ROOT / "native").glob("*.c")))
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(["cc", *FLAGS, include, *sources, "-o", str(built)], check=True)
    return built


def run(extension: Path, *module: str) -> str:
    library = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter leaves much behind at its end; see test_leaks.py
        "PYTHONMALLOC": "malloc",  # so that each object is watched by itself
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.stores.native.sanitized", str(extension), *module],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-8_000:]
    return done.stdout


def test_they_are_on(extension: Path) -> None:
    """A deliberate mistake, found: without this the others could pass for nothing."""
    with pytest.raises(AssertionError, match="AddressSanitizer"):
        run(extension, "tests.stores.native.mistake")


def test_random_histories(extension: Path) -> None:
    tests = [f"tests/stores/native/{name}.py" for name in ("test_same_decisions", "test_hash")]
    chosen = "zone and (TB or SL or several) and not tiers or long or published"
    said = run(extension, "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen, *tests)
    assert "passed" in said


def test_zones_that_others_have_written_over(extension: Path) -> None:
    assert run(extension, "tests.stores.native.damage", "1", "150") == "whole\n"
