"""`diana watch` says what changes and what goes wrong, as a node sees it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.servers.programs import VALKEY_9
from tests.servers.server import Server
from tests.servers.waiting import until

PATIENT = """
from diana.cli import main
from diana.rules.backends import redis
from diana.rules.backends import redis as redis_client
redis.REPLY_SECONDS = redis_client.REPLY_SECONDS = 15.0
main()
"""
TEXT = "url: /\nrules: [{name: all of it, unit: second, rpu: %d}]\n"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(VALKEY_9) as server:
        server.ask("SET", "diana:rules", TEXT % 10)
        yield server


class Watch:
    """`diana watch`, and what it has said so far."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[str] = []
        # Whoever is started in the background of a shell is told to ignore Ctrl-C, and so are its children.
        heeding = ["env", "--default-signal=INT"]
        self._process = subprocess.Popen(
            [*heeding, sys.executable, "-u", "-c", PATIENT, "watch", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._thread = Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append(line.rstrip())

    def until_said(self, words: str) -> None:
        until(lambda: any(words in line for line in self.lines), f"it says {words!r}")

    def ended(self) -> int:
        code = self._process.wait(30)
        self._thread.join()
        if self._process.stdout:
            self._process.stdout.close()
        return code

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        self._process.kill()
        self.ended()


def test_changes_and_problems_as_they_come(server: Server) -> None:
    watch = Watch(server.url, "--count", "2")
    try:
        watch.until_said("1 rule, version")
        publish(server, TEXT % 20)
        watch.until_said("~ all of it: rpu 10 → 20")
        publish(server, TEXT % -1)
        watch.until_said(":2:46: rules[0].rpu: '-1' is no whole number from 0")
        publish(server, TEXT % 30)
        watch.until_said("~ all of it: rpu 20 → 30")
        assert watch.ended() == 0
        mistakes = [line for line in watch.lines if "is no whole number" in line]
        assert len(mistakes) == 1, "said once"
    finally:
        watch.stop()


def test_a_file_is_watched_until_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(TEXT % 10)
    watch = Watch(str(path))
    try:
        watch.until_said("1 rule, version")
        path.unlink()
        watch.until_said("cannot be read")
        path.write_text(TEXT % 10)
        watch.until_said("all is well again")
        watch.interrupt()
        assert watch.ended() == 0
    finally:
        watch.stop()


def publish(server: Server, text: str) -> None:
    server.ask("SET", "diana:rules", text)
    server.ask("PUBLISH", "diana:rules", "changed")
