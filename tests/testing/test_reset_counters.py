"""Empty counters between tests: every counter in memory, and a fixture that pytest finds by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from diana import Guard, Limiter, Request, limit
from diana.rules.loading import rules_from_bytes
from diana.stores.memory import MemoryStore
from diana.testing import FakeClock, reset_counters

SUITE = """
import pytest
from flask import Flask

from diana import Limiter
from diana.flask import rate_limit

limiter = Limiter("1/hour")
app = Flask("site")


@app.get("/")
@rate_limit("1/hour")
def home():
    return "hello"


@pytest.mark.parametrize("number", range(3))
def test_once(number):
    assert limiter.take("alice")
    assert not limiter.take("alice")
    client = app.test_client()
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]
"""


@pytest.mark.parametrize(("used", "passed"), [("reset_limits", 3), ("", 1)])
def test_the_fixture_empties_all_counters_between_tests(
    tmp_path: Path, used: str, passed: int
) -> None:
    (tmp_path / "test_once.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nusefixtures = {used}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{passed} passed" in done.stdout, done.stdout + done.stderr


def test_every_counter_in_memory_is_emptied() -> None:
    clock = FakeClock()
    policy = rules_from_bytes(b"url: /\nrules: [{actor: ip, unit: hour, rpu: 1}]")
    guard = Guard(policy, clock=clock)
    limiter = Limiter("1/hour; 1/minute", clock=clock)
    store = MemoryStore()
    named = Limiter("1/hour", store=store, name="named", clock=clock)

    @limit("1/hour", fallback=lambda: False, clock=clock)
    def once() -> bool:
        return True

    def asked() -> list[bool]:
        return [
            bool(guard.check(Request())),
            bool(limiter.take("a")),
            bool(named.take("a")),
            once(),
        ]

    for _ in range(3):
        assert asked() == [True] * 4
        assert asked() == [False] * 4
        assert len(store) == 1
        reset_counters()
        assert len(store) == 0


def test_a_store_that_was_cleared_is_bounded_and_forgets_as_before() -> None:
    store = MemoryStore(max_keys=10)
    clock = FakeClock()
    limiter = Limiter("1/second", store=store, name="some", clock=clock)
    for round in range(3):
        for number in range(100):
            assert limiter.take(f"{round} {number}")
        assert len(store) <= 11
        store.clear()
    assert limiter.take("a")
    clock.advance(3_600)
    for number in range(20):
        limiter.take(f"later {number % 2}")
    assert len(store) == 2
