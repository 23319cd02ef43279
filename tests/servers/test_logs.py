"""A test that fails shows what its servers said meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = """
from tests.servers.programs import REDIS_7
from tests.servers.server import Server

def log(server, text):
    server.ask("EVAL", f"redis.log(redis.LOG_WARNING, '{text}')", 0)

def test_that_passes(redis7):
    log(redis7, "before")

def test_that_fails(redis7):
    log(redis7, "of the file")
    with Server(REDIS_7) as mine:
        log(mine, "of the test")
        mine.restart()
        log(mine, "started again")
        assert not "here"
"""


def test_a_failed_test_shows_what_its_servers_said(tmp_path: Path) -> None:
    file = tmp_path / "test_failing.py"
    file.write_text(TESTS)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    shown = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout
    assert "1 failed, 1 passed" in shown, shown
    assert shown.count("log of redis-server on port ") == 3
    for said in ("of the file", "of the test", "started again"):
        assert shown.count(f"# {said}") == 1, shown
    assert "before" not in shown
