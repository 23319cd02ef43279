"""What holds of counters in memory holds in C and in Python: the tests that ran in one of them run in the other too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diana.stores.c_kernels import SWITCH, kernels

ROOT = Path(__file__).parents[2]
TESTS = {
    "the store": ["tests/stores/test_memory.py"],
    "what counts there": [
        "tests/algorithms/test_tiers.py",
        "tests/limiter/test_limiter.py",
        "tests/engine/test_guard.py",
        "tests/engine/test_limit_adjustments.py",
        "tests/testing/test_reset_counters.py",
    ],
}
"""Few processes: each takes a second to find its tests."""

if kernels() is not None:

    @pytest.mark.parametrize("some", TESTS)
    def test_in_python_too(some: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS[some]],
            cwd=ROOT,
            env={**os.environ, SWITCH: "0"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-4_000:]
