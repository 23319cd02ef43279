"""Under gevent, patched before Diana is imported or after: greenlets measure and keep the share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLAY = """
import gevent
{early}
from diana import Guard, Request
from tests.shedding.lines import Dial, at_level, line, policy
{late}
guard = Guard(policy(line(Dial(92.0))))
at_level(guard, 2)
verdicts = gevent.joinall([gevent.spawn(guard.check, Request()) for _ in range(10_000)])
rejected = sum(not verdict.value for verdict in verdicts)
assert 2_800 <= rejected <= 3_200, rejected
guard.close()
print("played")
"""
PATCH = "from gevent import monkey; monkey.patch_all()"


@pytest.mark.parametrize("patched", ["early", "late"])
def test_greenlets(patched: str) -> None:
    code = PLAY.format(**{"early": "", "late": "", patched: PATCH})
    played = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert played.stdout == "played\n", played.stderr
