"""Inside pytest: random order by a seed, a tiny switch interval, and a list of what fell, written as it falls."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from itertools import groupby
from pathlib import Path

import pytest

SWITCH_SECONDS = 1e-6


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shake")
    group.addoption("--shake-seed", type=int, default=0)
    group.addoption("--shake-fell", type=Path)


def pytest_configure() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files in random order, and the tests of each: a file's servers are started once."""
    order = random.Random(config.getoption("--shake-seed"))
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    order.shuffle(files)
    for tests in files:
        order.shuffle(tests)
    items[:] = [test for tests in files for test in tests]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        fell: Path | None = item.config.getoption("--shake-fell")
        if fell is not None:
            with fell.open("a") as file:
                file.write(f"{item.nodeid}\n")
    return report
