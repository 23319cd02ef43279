"""Celery's prefork pool: the store is opened in the parent, before it forks."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.processes.celery_app import celery_app
from tests.processes.workers import (
    SECONDS,
    WORKERS,
    Answer,
    Workers,
    check_healing,
    check_one_count,
    check_rules_are_followed,
)
from tests.servers.programs import REDIS_7
from tests.servers.server import Server

TAKES = 10
"""By one task."""


class CeleryWorkers(Workers):
    """Asked by tasks instead of requests."""

    def __init__(self, store: Server, broker: Server) -> None:
        command = [
            sys.executable, "-m", "celery", "-A", "tests.processes.tasks", "worker", "--concurrency", str(WORKERS),
            "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO",
        ]  # fmt: skip
        self._app = celery_app(broker.url)
        super().__init__(store, command, b" ready.")

    def ask(self, path: str = "/") -> Answer:
        return self.ask_often(1)[0]

    def ask_often(self, number: int, at_once: int = 24) -> list[Answer]:
        times = TAKES if number > TAKES * WORKERS else 1
        tasks = [self._app.send_task("take_often", (times,)) for _ in range(number // times)]
        told = [task.get(timeout=SECONDS, interval=0.02) for task in tasks]
        return [Answer(**one) for answers in told for one in answers]


@pytest.fixture
def store() -> Iterator[Server]:
    with Server(REDIS_7) as server:
        yield server


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Apart from the store, which is killed."""
    with Server(REDIS_7) as server:
        monkeypatch.setenv("SERVED_BROKER", server.url)
        yield server


def test_celery_prefork(store: Server, broker: Server) -> None:
    with CeleryWorkers(store, broker) as workers:
        pids = check_one_count(workers)
        check_rules_are_followed(workers, pids)
        check_healing(workers, store, pids)
