"""Several processes count as one, whichever server has forked them, and whatever it has patched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.workers import (
    UWSGI,
    Workers,
    check_healing,
    check_load_is_measured,
    check_one_count,
    check_rules_are_followed,
    gunicorn,
    uwsgi,
)
from tests.servers.programs import REDIS_7
from tests.servers.server import Server

WSGI = "tests.processes.served:wsgi"
KINDS = {
    "sync": [WSGI],
    "gthread": [WSGI, "--threads", "8"],
    "gevent": [WSGI],
    "uvicorn_worker.UvicornWorker": ["tests.processes.served:asgi"],
}
COMMANDS = {
    f"gunicorn {kind}{preload}": gunicorn("-k", kind, *words, *preload.split())
    for kind, words in KINDS.items()
    for preload in ("", " --preload")
}
if UWSGI.exists():  # it is installed where there is a compiler
    COMMANDS["uwsgi"] = uwsgi()
    COMMANDS["uwsgi --enable-threads"] = uwsgi("--enable-threads")
    COMMANDS["uwsgi --threads 4"] = uwsgi("--threads", "4")
    COMMANDS["uwsgi --lazy-apps"] = uwsgi("--enable-threads", "--lazy-apps")


@pytest.fixture
def store() -> Iterator[Server]:
    with Server(REDIS_7) as server:
        yield server


@pytest.mark.parametrize("name", COMMANDS)
def test_all_workers_count_as_one_and_heal_and_follow_the_rules(name: str, store: Server) -> None:
    ready = b"spawned uWSGI worker 1" if name.startswith("uwsgi") else b"Listening at"
    with Workers(store, COMMANDS[name], ready) as workers:
        if name.startswith("uwsgi"):
            assert workers.threads == 1, "it may hold the interpreter at the fork"
        pids = check_one_count(workers)
        check_load_is_measured(workers, pids)
        check_rules_are_followed(workers, pids)
        check_healing(workers, store, pids)
