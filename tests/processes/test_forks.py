"""In a forked child, also in one of which Python was not told: nothing is expected of threads that are the parent's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.workers import LIMIT, ROOT, RULES, SECONDS, environment
from tests.servers.server import Server

WHAT = ["wait_in_line", "follow_rules", "do_without_threads", "measure_load"]


def run(how: str, what: str, redis7: Server, folder: Path) -> None:
    redis7.client().flushall()
    rules = folder / "rules.yaml"
    rules.write_text(RULES % LIMIT)
    done = subprocess.run(
        [sys.executable, "-m", "tests.processes.forking", how, what],
        env={**os.environ, **environment(redis7, rules)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("how", ["python", "c"])
def test_a_forked_child_can(what: str, how: str, redis7: Server, tmp_path: Path) -> None:
    run(how, what, redis7, tmp_path)


def test_the_first_request_of_a_child_that_was_forked_unseen_knows_the_rules_of_now(
    redis7: Server, tmp_path: Path
) -> None:
    run("c", "see_old_changes", redis7, tmp_path)
