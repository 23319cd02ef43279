"""Whoever follows rules leaves no thread behind, in this process or in a forked one."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from diana import Guard
from tests.rules.documents import ANY, document, local_file, rules_threads
from tests.rules.patience import ANSWER_SECONDS
from tests.servers.programs import VALKEY_9
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.servers.web import Visit, WebServer

KEY = "diana:rules"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(VALKEY_9) as server:
        yield server


@pytest.fixture
def file(server: Server, tmp_path: Path) -> Iterator[Path]:
    server.ask("SET", KEY, document(7))
    before = set(rules_threads())  # one of an earlier test may be about to end
    yield local_file(tmp_path, server.url)
    until(lambda: set(rules_threads()) <= before, "all threads have ended")


def test_closing_ends_all_threads_soon(file: Path, server: Server) -> None:
    before = set(rules_threads())
    guard = Guard.from_file(file)
    assert set(rules_threads()) - before
    guard.close()
    until(lambda: set(rules_threads()) <= before, "all threads have ended")
    until(lambda: server.ask("PUBSUB", "NUMSUB", KEY)[1] == 0, "nobody listens any more")
    assert guard.check(ANY).decisions[0].limit == 7, "the rules it had still hold"
    guard.close()


def dropped(guard: Guard) -> None:
    """Gone with its last reference."""


def dropped_in_a_circle(guard: Guard) -> None:
    """Gone when the collector comes round."""
    circle: list[object] = [guard]
    circle.append(circle)


@pytest.mark.parametrize("drop", [dropped, dropped_in_a_circle])
def test_a_guard_that_nobody_has_any_more_ends_its_threads(
    drop: Callable[[Guard], None], file: Path
) -> None:
    before = set(rules_threads())
    drop(Guard.from_file(file))
    gc.collect()
    until(lambda: set(rules_threads()) <= before, "all threads have ended")


def silent(visit: Visit) -> None:
    visit.web.released.wait()


def test_closing_while_the_centre_is_silent_does_not_wait_for_it(tmp_path: Path) -> None:
    before = set(rules_threads())
    with WebServer(document(7)) as web:
        guard = Guard.from_file(local_file(tmp_path, web.url))
        web.fault = silent
        asked = len(web.visits)
        until(lambda: len(web.visits) > asked, "somebody waits for an answer")
        begin = monotonic()
        guard.close()
        assert monotonic() - begin < ANSWER_SECONDS - 5
    until(lambda: set(rules_threads()) <= before, "all threads have ended")
    assert guard.problems == (), "whoever hangs up hears no complaints"


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_follows_too(file: Path, server: Server) -> None:
    guard = Guard.from_file(file)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(30)
            until(lambda: len(rules_threads()) >= 3, "it has threads of its own")
            os.write(tell, b"!")
            until(lambda: guard.check(ANY).decisions[0].limit == 8, "it sees the change")
            code = 0
        finally:
            os._exit(code)
    assert os.read(ready, 1) == b"!"
    server.ask("SET", KEY, document(8))
    server.ask("PUBLISH", KEY, "changed")
    until(lambda: guard.check(ANY).decisions[0].limit == 8, "the parent sees it")
    assert os.waitpid(child, 0)[1] == 0
    os.close(ready)
    os.close(tell)
    guard.close()


SCRIPT = """
import sys
from diana import Guard, Request
from diana.rules.watch import live_rules as live
from diana.rules.backends import redis
live.START_WAIT_SECONDS = 15.0
redis.REPLY_SECONDS = 15.0  # a server that is slow is complained of
guard = Guard.from_file(sys.argv[1])
print(guard.check(Request("GET", "/")).decisions[0].limit)
if sys.argv[2] == "close":
    guard.close()
"""


@pytest.mark.parametrize("how", ["close", "leave open"])
def test_a_program_ends_when_it_wants_to_and_silently(file: Path, how: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT, str(file), how],
        capture_output=True,
        text=True,
        timeout=60,  # it would last for ever
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "7\n", "")
