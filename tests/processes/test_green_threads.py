"""Under gevent and eventlet, which patch Python's threads and sockets: before Diana is imported, or after."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Thread

import pytest

from tests.processes.workers import (
    WORKERS,
    Workers,
    check_healing,
    check_load_is_measured,
    check_one_count,
    check_rules_are_followed,
    gunicorn,
)
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until


@pytest.fixture
def store() -> Iterator[Server]:
    with Server(REDIS_7) as server:
        yield server


def test_eventlet(store: Server) -> None:
    command = [sys.executable, "-m", "tests.processes.green", "{port}", str(WORKERS)]
    with Workers(store, command, b"listening") as workers:
        pids = check_one_count(workers)
        check_load_is_measured(workers, pids)
        check_rules_are_followed(workers, pids)
        check_healing(workers, store, pids)


@pytest.mark.parametrize("preload", [[], ["--preload"]], ids=["", "preload"])
def test_in_gevent_who_waits_for_a_limit_holds_up_no_other_request(
    preload: list[str], store: Server
) -> None:
    command = [*gunicorn("-k", "gevent", "tests.processes.served:wsgi", *preload), "--workers", "1"]
    with Workers(store, command, b"Listening at") as workers:
        # One sleeps, the other stands in line behind it; both until the server is stopped.
        for _ in range(2):
            Thread(target=workers.ask_in_vain, args=("/wait",), daemon=True).start()
        until(lambda: workers.ask().waiting == 2, "two wait, and others are answered")
        assert workers.ask().waiting == 2
