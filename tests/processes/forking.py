"""A process that opens all of Diana, forks, and has its child do what the test says: `python -m tests.processes.forking HOW WHAT`.

HOW is `python`, or `c` as uWSGI does it: Python is not told. WHAT is the name of a function below.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diana import Limiter, Request
from tests.processes import served
from tests.processes.workers import LIMIT, RULES
from tests.servers.waiting import until


def take() -> tuple[bool, bool]:
    """Whether the limiter and the guard were decided here, and not by the store."""
    beat, verdict = served.pulse.take("k"), served.guard.check(Request("GET", "/"))
    return beat.degraded, all(decision.degraded for decision in verdict.decisions)


def wait_in_line() -> None:
    """In the parent one sleeps, and one stands in line behind it; neither is here."""
    waiting.reset("k")
    assert waiting.wait("k", timeout=20)


def follow_rules() -> None:
    version = served.guard.check(Request("GET", "/")).version
    new = Path(served.RULES).with_suffix(".new")
    new.write_text(RULES % (2 * LIMIT))
    new.replace(served.RULES)
    until(lambda: served.guard.check(Request("GET", "/")).version != version, "they are followed")


def measure_load() -> None:
    """The parent's thread is not here, and what it has measured is the parent's."""
    (before,) = served.guard._evaluator.threads.factors()
    assert before.value is not None
    _ = served.guard.factors
    until(lambda: served.guard.factors[0].value not in (None, before.value), "it is measured anew")


def see_old_changes() -> None:
    """What was published between the fork and the first request holds for the first request."""
    new = Path(served.RULES).with_suffix(".new")
    new.write_text(RULES % (2 * LIMIT))
    new.replace(served.RULES)
    assert served.guard.check(Request("GET", "/")).version != version_of_parent


def do_without_threads() -> None:
    """The first requests find that no thread can be started; later ones find that it can."""
    assert [take() for _ in range(20)] == [(True, True)] * 20
    problems = [problem.message for problem in served.guard.problems]
    threading._start_new_thread = start_thread  # type: ignore[attr-defined]
    assert problems == ["cannot start a thread to follow them: can't start new thread"]
    until(lambda: take() == (False, False), "the store decides")
    follow_rules()
    until(lambda: not served.guard.problems, "nothing is wrong")


start_thread: Any = threading._start_new_thread  # type: ignore[attr-defined]


def refuse_thread(*_: Any, **__: Any) -> None:
    raise RuntimeError("can't start new thread")


FORKS: dict[str, Callable[[], int]] = {"python": os.fork, "c": ctypes.PyDLL(None).fork}

if __name__ == "__main__":
    how, what = sys.argv[1:]
    waiting = Limiter("1/day")
    waiting.take("k")
    for _ in range(2):
        threading.Thread(target=waiting.wait, args=("k",), daemon=True).start()
    lines = waiting._limits.lines
    until(lambda: len(lines._own()._lines.get("k", ())) == 2, "two wait")
    until(lambda: take() == (False, False), "the store decides")
    until(lambda: served.guard.factors[0].value is not None, "the load is measured")
    version_of_parent = served.guard.policy.version
    if what == "do_without_threads":
        threading._start_new_thread = refuse_thread  # type: ignore[attr-defined]
    child = FORKS[how]()
    if not child:
        try:
            globals()[what]()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
