"""The store is lost: nginx answers in time, does what each rule says, and finds back by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.servers.limiting_nginx import LimitingNginx
from tests.servers.programs import REDIS_7
from tests.servers.server import Server
from tests.servers.waiting import until

RULES = """
store: {store}
store_budget: {budget}
nodes: 2
limits:
  - {{url: /local, rules: [{{name: local, unit: day, rpu: 10, scope: global}}]}}
  - {{url: /open, rules: [{{name: open, unit: day, rpu: 10, scope: global, when_down: open}}]}}
  - {{url: /closed, rules: [{{name: closed, unit: day, rpu: 10, scope: global, when_down: closed}}]}}
  - {{url: /probe, rules: [{{name: probe, unit: day, rpu: 1000, scope: global, when_down: closed}}]}}
"""


COUNTER = "diana:local|all|global|TB|day|="


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(REDIS_7) as server:
        yield server


def statuses(nginx: LimitingNginx, path: str, count: int) -> list[int]:
    with httpx.Client(timeout=60) as client:
        return [client.get(nginx.url + path).status_code for _ in range(count)]


def is_back(nginx: LimitingNginx) -> bool:
    return statuses(nginx, "/probe", 1) == [200]


@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_each_rule_does_its_when_down_and_the_store_is_asked_again_when_it_is_back(
    server: Server, fault: str
) -> None:
    with LimitingNginx(RULES.format(store=server.url, budget="200ms"), workers=2) as nginx:
        until(lambda: is_back(nginx), "the store is asked")
        getattr(server, fault)()
        assert statuses(nginx, "/closed", 1) == [503]
        # This nginx is one of two nodes.
        assert statuses(nginx, "/local", 8).count(200) == 5
        assert statuses(nginx, "/open", 20) == [200] * 20
        degraded = httpx.get(f"{nginx.url}/closed", timeout=60)
        assert degraded.json()["type"].endswith("temporary-reduced-capacity")
        assert degraded.headers["Retry-After"] == "1"
        server.thaw() if fault == "freeze" else server.restart()
        until(lambda: is_back(nginx), "the store is asked again")
        assert "unreachable" in nginx.log
        # One worker lets all of them ask again, and then says so.
        until(lambda: "is back" in nginx.log, "nginx says that it is back")


def test_what_was_admitted_meanwhile_is_charged_to_the_store_once(server: Server) -> None:
    # Who is killed refuses at once: no budget runs out.
    rules = RULES.format(store=server.url, budget="10s").replace("nodes: 2", "nodes: 1")
    with LimitingNginx(rules, workers=2) as nginx:
        until(lambda: is_back(nginx), "the store is asked")
        server.kill()
        # The first of these may have been sent, for all that nginx knows, so it is charged to nobody.
        assert statuses(nginx, "/closed", 1) == [503]
        assert statuses(nginx, "/local", 6) == [200] * 6
        server.restart()
        until(lambda: is_back(nginx), "the store is asked again")
        until(lambda: server.ask("EXISTS", COUNTER), "it is charged")
        assert statuses(nginx, "/local", 5).count(200) == 4


def test_while_it_is_lost_no_request_waits(server: Server) -> None:
    """Only the first ones wait for the budget: with a breaker that did nothing, these would take twenty seconds."""
    with LimitingNginx(RULES.format(store=server.url, budget="1s"), workers=1) as nginx:
        until(lambda: is_back(nginx), "the store is asked")
        server.freeze()
        assert statuses(nginx, "/open", 1) == [200]
        began = time.monotonic()
        assert statuses(nginx, "/open", 20) == [200] * 20
        assert time.monotonic() - began < 10


def test_what_came_too_late_is_not_counted(server: Server) -> None:
    with LimitingNginx(RULES.format(store=server.url, budget="100ms"), workers=1) as nginx:
        until(lambda: is_back(nginx), "the store is asked")
        server.freeze()
        statuses(nginx, "/open", 1)
        time.sleep(
            1.5
        )  # the server's own clock: a command that waits in its socket has to grow old
        server.thaw()
        until(lambda: is_back(nginx), "the store is asked again")
        assert server.ask("KEYS", "diana:open*") == []


def test_a_flush_of_scripts_is_not_noticed(server: Server) -> None:
    with LimitingNginx(RULES.format(store=server.url, budget="10s"), workers=2) as nginx:
        for _ in range(5):
            assert statuses(nginx, "/closed", 1) == [200]
            server.ask("SCRIPT", "FLUSH")
        assert statuses(nginx, "/closed", 6) == [200] * 5 + [503]
        assert "unreachable" not in nginx.log


def test_a_store_that_was_never_there_is_found_when_it_comes(server: Server) -> None:
    server.kill()
    with LimitingNginx(RULES.format(store=server.url, budget="100ms"), workers=1) as nginx:
        assert statuses(nginx, "/open", 3) == [200] * 3
        server.restart()
        until(lambda: is_back(nginx), "the store is asked")
