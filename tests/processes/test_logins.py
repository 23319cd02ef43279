"""Wrong logins at several workers at once: whichever server has forked them, exactly as many guesses as the rule says reach the app."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection

import pytest

from diana import Guard, Request
from tests.processes.workers import SECONDS, UWSGI, Workers, gunicorn, uwsgi
from tests.servers.ports import HOST
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until

WSGI, ASGI = "tests.processes.logins:wsgi", "tests.processes.logins:asgi"
COMMANDS = {
    "gunicorn sync": gunicorn("-k", "sync", WSGI, "--preload"),
    "gunicorn gthread": gunicorn("-k", "gthread", "--threads", "8", WSGI),
    "gunicorn gevent": gunicorn("-k", "gevent", WSGI, "--preload"),
    "gunicorn uvicorn": gunicorn("-k", "uvicorn_worker.UvicornWorker", ASGI),
}
if UWSGI.exists():  # it is installed where there is a compiler
    COMMANDS["uwsgi"] = uwsgi("--enable-threads", app=WSGI)
    COMMANDS["uwsgi without threads"] = uwsgi(app=WSGI)
RULES = """
limits:
  - url: /
    rules:
      - {name: wrong passwords, actor: account, unit: hour, rpu: 5, algo: SL, scope: global, status: 429, charge_on: 401}
"""


class Logins(Workers):
    def write_rules(self, rpu: int) -> None:
        self.rules.write_text(RULES)

    def login(self, account: str, status: int) -> int:
        """As the app would answer; what the client sees."""
        connection = HTTPConnection(HOST, self.port, timeout=SECONDS)
        try:
            connection.request("POST", f"/{status}", headers={"X-Account-Id": account})
            return connection.getresponse().status
        finally:
            connection.close()

    def reached(self) -> int:
        return len(self.rules.with_name(f"{self.rules.name}.reached").read_bytes())


@pytest.fixture
def store() -> Iterator[Server]:
    with Server(REDIS_7) as server:
        yield server


@pytest.mark.parametrize("name", COMMANDS)
def test_fifty_wrong_logins_at_once_are_five_guesses(name: str, store: Server) -> None:
    ready = b"spawned uWSGI worker 1" if name.startswith("uwsgi") else b"Listening at"
    with (
        Logins(store, COMMANDS[name], ready) as logins,
        closing(Guard.from_file(logins.rules, f"{store.url}?budget=5s")) as guard,
        ThreadPoolExecutor(50) as pool,
    ):
        if name.startswith("uwsgi"):
            assert logins.threads == 1, "it may hold the interpreter at the fork"
        answers = Counter(pool.map(lambda _: logins.login("alice", 401), range(50)))
        assert (answers, logins.reached()) == ({401: 5, 429: 45}, 5)
        assert [logins.login("bob", 200) for _ in range(5)] == [200] * 5
        bob = Request("POST", "/", {"X-Account-Id": "bob"})
        until(lambda: guard.peek(bob).decisions[0].remaining == 4, "bob has all back", SECONDS)
        assert logins.login("alice", 200) == 429
