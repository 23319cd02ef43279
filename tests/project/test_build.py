"""The C part: built where there is a compiler, done without where there is none, and the same for every Python from 3.11 on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diana.stores.c_kernels import kernels

ROOT = Path(__file__).parents[2]
COUNTS = """
from diana import Limiter
from diana.stores.c_kernels import description
take = Limiter("3/day").take
print(sum(bool(take("k")) for _ in range(5)), description())
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "native", tmp_path / "native")
    without = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "diana", tmp_path / "src" / "diana", ignore=without)
    return tmp_path


def built(sources: Path, **environment: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "build", "--build-lib", "built"],
        cwd=sources,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return sources / "built"


def counted(built: Path, **environment: str) -> str:
    """What a process says that finds Diana there."""
    return subprocess.run(
        [sys.executable, "-c", COUNTS],
        env={**os.environ, "PYTHONPATH": str(built), **environment},
        cwd=built,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_without_a_compiler_it_is_built_and_counts_in_python(sources: Path) -> None:
    place = built(sources, CC="/nonexistent/cc", LDSHARED="/nonexistent/cc")
    assert not list(place.rglob("*.so"))
    assert counted(place) == "3 counting in Python (built without a C compiler)\n"


def test_what_is_no_python_is_built_too(sources: Path) -> None:
    place = built(sources, DIANA_NATIVE="0") / "diana"
    source = sources / "src" / "diana"
    files = {path.relative_to(source) for path in source.rglob("*.lua")}
    assert Path("stores/redis/protocol/lua/acquire.lua") in files
    assert files == {path.relative_to(place) for path in place.rglob("*.lua")}


@pytest.mark.parametrize("switch", ["0", "off"])
def test_it_can_be_turned_off(switch: str) -> None:
    assert (
        counted(ROOT / "src", DIANA_NATIVE=switch)
        == f"3 counting in Python (DIANA_NATIVE={switch})\n"
    )


def test_the_archive_of_sources_has_what_is_compiled_and_no_tests(sources: Path) -> None:
    """Setuptools would add the test modules, without the packages that they import."""
    (sources / "tests").mkdir()
    (sources / "tests" / "test_alone.py").touch()
    subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "-q", "sdist"],
        cwd=sources,
        check=True,
        capture_output=True,
    )
    (archive,) = (sources / "dist").glob("*.tar.gz")
    names = subprocess.run(
        ["tar", "tzf", archive], capture_output=True, text=True, check=True
    ).stdout
    for path in (ROOT / "native").glob("*.[ch]"):
        assert f"/native/{path.name}\n" in names
    assert "/tests/" not in names


if kernels() is not None:

    def test_one_build_is_for_every_python_from_3_11_on() -> None:
        done = subprocess.run(
            [
                Path(sys.executable).parent / "abi3audit",
                "--strict",
                "--assume-minimum-abi3",
                "3.11",
                kernels().__file__,
            ],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
