"""Inside pytest: random order by a seed, a tiny switch interval, and a record of what fell and what was done, written as it happens."""

from __future__ import annotations

import random
import sys
from itertools import groupby
from pathlib import Path

import pytest

SWITCH_SECONDS = 1e-6


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shake")
    group.addoption("--shake-seed", type=int, default=0)
    group.addoption("--shake-record", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    record: Path | None = config.getoption("--shake-record")
    if record is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Record(record))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files in random order, and the tests of each: a file's servers are started once."""
    order = random.Random(config.getoption("--shake-seed"))
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    order.shuffle(files)
    for tests in files:
        order.shuffle(tests)
    items[:] = [test for tests in files for test in tests]


class _Record:
    """Kept where all reports arrive, so that a test under which a worker of pytest dies is in it as well."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write("fell", report.nodeid)
        elif report.when == "teardown":
            self._write("done", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write("fell", report.nodeid)

    def _write(self, what: str, name: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{what} {name}\n")
