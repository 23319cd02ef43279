"""A web server with several worker processes, and what is asked of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.servers.ports import HOST
from tests.servers.process import Process
from tests.servers.server import Server
from tests.servers.waiting import until

ROOT = Path(__file__).parents[2]
WORKERS = 3
LIMIT = 50
"""As in `served`, which cannot be imported here."""
SECONDS = 60.0

RULES = """
shed: [{factor: process_memory, levels: [{above: 99, reject: 1}]}]
limits:
  - url: /
    rules:
      - {name: everyone, unit: day, rpu: %d, algo: W, align: first, scope: global}
"""


class Answer(NamedTuple):
    pid: int
    limiter: bool
    guard: bool
    degraded: bool
    version: str
    waiting: int
    threads: list[str]
    measured: bool


class Workers(Process):
    """`command` is the program's, with `{port}`; it serves `tests.processes.served`."""

    taken = "already in use"

    def __init__(self, store: Server, command: Iterable[str], ready: bytes) -> None:
        self._words = list(command)
        self.ready = ready
        self._store = store
        self.rules = store.folder / "rules.yaml"
        self.write_rules(LIMIT)
        super().__init__(environment=environment(store, self.rules))

    def write_rules(self, rpu: int) -> None:
        new = self.rules.with_suffix(".new")
        new.write_text(RULES % rpu)
        new.replace(self.rules)

    @property
    def threads(self) -> int:
        """Of the process that forks the workers."""
        return int(psutil.Process(self.pid).num_threads())

    def ask(self, path: str = "/") -> Answer:
        connection = HTTPConnection(HOST, self.port, timeout=SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body
            return Answer(**json.loads(body))
        finally:
            connection.close()

    def ask_in_vain(self, path: str) -> None:
        """Of a request that is never answered."""
        with suppress(OSError, HTTPException):
            self.ask(path)

    def ask_often(self, number: int, at_once: int = 24) -> list[Answer]:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(self.ask, ["/"] * number))

    def until_each(
        self, pids: set[int], holds: Callable[[Answer], bool], wanted: str
    ) -> list[Answer]:
        """Ask until each of these workers has given such an answer; all answers until then."""
        missing, answers = set(pids), list[Answer]()

        def all_have() -> bool:
            new = self.ask_often(4 * WORKERS, 4 * WORKERS)
            answers.extend(new)
            missing.difference_update(answer.pid for answer in new if holds(answer))
            return not missing

        until(all_have, f"in each worker {wanted}", SECONDS)
        return answers

    def stop(self) -> None:
        """Its workers with it, by its own hand."""
        if hasattr(self, "_process") and self.alive:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS)
        super().stop()

    def _command(self, port: int) -> list[str]:
        return [word.format(port=port) for word in self._words]


def environment(store: Server, rules: Path) -> dict[str, str]:
    return {
        "HOME": str(store.folder),  # gunicorn keeps something there
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "SERVED_STORE": f"{store.url}?budget=5s",
        "SERVED_RULES": str(rules),
    }


def gunicorn(*arguments: str) -> list[str]:
    return [
        sys.executable, "-m", "gunicorn", "--bind", f"{HOST}:{{port}}", "--workers", str(WORKERS),
        "--graceful-timeout", "1", *arguments,
    ]  # fmt: skip


UWSGI = Path(sys.executable).parent / "uwsgi"


def uwsgi(
    *arguments: str, workers: int = WORKERS, app: str = "tests.processes.served:wsgi"
) -> list[str]:
    return [
        str(UWSGI), "--master", "--processes", str(workers), "--http-socket", f"{HOST}:{{port}}", "--virtualenv", sys.prefix,
        "--module", app, "--need-app", "--no-orphans", "--die-on-term", "--listen", "64", *arguments,
    ]  # fmt: skip


def check_one_count(workers: Workers) -> set[int]:
    """However many processes ask, the limit holds exactly, and the store decides all; gives their pids."""
    answers = workers.ask_often(600)
    pids = {answer.pid for answer in answers}

    def all_took_part() -> bool:
        answers.extend(new := workers.ask_often(4 * WORKERS, 4 * WORKERS))
        pids.update(answer.pid for answer in new)
        return len(pids) == WORKERS

    until(all_took_part, f"all {WORKERS} workers have answered", SECONDS)
    assert [answer for answer in answers if answer.degraded] == []
    assert sum(answer.limiter for answer in answers) == LIMIT
    assert sum(answer.guard for answer in answers) == LIMIT
    assert os.getpid() not in pids
    return pids


def check_healing(workers: Workers, store: Server, pids: set[int]) -> None:
    """The server is killed and started again, and no worker takes notice for longer than that."""
    store.kill()
    workers.until_each(pids, lambda answer: answer.degraded, "the store is lost")
    store.restart()
    workers.until_each(pids, lambda answer: not answer.degraded, "the store is back")


def check_rules_are_followed(workers: Workers, pids: set[int]) -> None:
    version = workers.ask().version
    workers.write_rules(2 * LIMIT)
    workers.until_each(pids, lambda answer: answer.version != version, "the new rules are in force")


def check_load_is_measured(workers: Workers, pids: set[int]) -> None:
    workers.until_each(pids, lambda answer: answer.measured, "the load is measured")
