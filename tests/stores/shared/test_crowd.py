"""Several processes on one zone: exactly the limit, and no harm when one is killed anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diana.stores.zone.python.python_zone import PythonZone
from diana.stores.zone.store import SharedStore
from tests.stores.shared.soundness import check_soundness
from tests.stores.shared.zones import zone_name

CROWD = Path(__file__).with_name("crowd.py")
CODES = ["TB", "LB", "W", "SW", "SL"]
KINDS = {"python": "0", "native": "1"}
GENEROUS_SECONDS = 5.0
"""The bound is 100 ms, on a machine that has time for us."""


@pytest.fixture
def name() -> Iterator[str]:
    with zone_name() as name:
        yield name


def ran(kind: str, *arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, str(CROWD), *map(str, arguments)],
        env={**os.environ, "DIANA_NATIVE": KINDS[kind]},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("kind", KINDS)
def test_eight_processes_on_one_key_admit_exactly_the_limit(
    name: str, kind: str, code: str
) -> None:
    limit = 2_000
    found = ran(kind, "count", name, code, 8, 500, 1, limit)
    assert found["codes"] == [0] * 8
    wanted = limit if code != "LB" else pytest.approx(1, abs=5)  # a queue of a second
    assert found["admitted"] == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_eight_processes_on_a_thousand_keys_admit_exactly_the_limit_of_each(
    name: str, kind: str
) -> None:
    found = ran(kind, "count", name, "W", 8, 2_000, 1_000, 3)
    assert found == {"codes": [0] * 8, "admitted": 3_000}


@pytest.mark.parametrize("code", ["W", "SL"])
@pytest.mark.parametrize("kind", KINDS)
def test_processes_killed_in_the_middle_of_load_harm_nothing(
    name: str, kind: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills, processes = 100, 4
    found = ran(kind, "kill", name, code, processes, kills)
    # Who is killed between the charge and its note has charged one more than it says.
    assert found["admitted"] <= found["used"] <= found["admitted"] + kills + processes
    assert found["longest"] < GENEROUS_SECONDS
    monkeypatch.setenv("DIANA_NATIVE", KINDS[kind])
    store = SharedStore(name)
    assert store.counts()["keys"] == found["keys"]
    if isinstance(store.zone, PythonZone):
        check_soundness(store.zone)
