"""nginx and Python count together: one limit, one counter, whoever is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import httpx
import pytest

from diana.core.request import Request
from diana.guard import Guard
from diana.rules.loading import load_rules
from tests.servers.cluster import Cluster
from tests.servers.limiting_nginx import LimitingNginx
from tests.servers.server import Server
from tests.servers.waiting import until

LIMIT = 60
AT_ONCE = 16

SHARED = """
store: {store}
store_budget: 10s
limits:
  - url: /
    rules:
      - {{name: everyone, actor: all, unit: day, rpu: {limit}, algo: {algo}, scope: global}}
      - {{name: each product, actor: query sku, unit: day, rpu: 1000, scope: global}}
"""


def passed_by_nginx(nginx: LimitingNginx, times: int, path: str = "/buy?sku=7") -> int:
    """How many of so many concurrent requests pass; each is answered with 200 or 503."""

    async def ask() -> int:
        limits = httpx.Limits(max_connections=AT_ONCE)
        async with httpx.AsyncClient(limits=limits, timeout=60) as client:
            replies = await asyncio.gather(*[client.get(nginx.url + path) for _ in range(times)])
        statuses = [reply.status_code for reply in replies]
        assert set(statuses) <= {200, 503}, nginx.log
        return statuses.count(200)

    return asyncio.run(ask())


def passed_by_python(guard: Guard, times: int) -> int:
    request = Request("GET", "/buy", query="sku=7", peer="127.0.0.1")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return sum(bool(verdict) for verdict in threads.map(guard.check, [request] * times))


def guard_of(rules: str, folder: Path) -> Guard:
    file = folder / "diana.yaml"
    file.write_text(rules, encoding="utf-8")
    return Guard(load_rules(file))


def is_shared_exactly(rules: str, folder: Path) -> None:
    guard = guard_of(rules, folder)
    try:
        with LimitingNginx(rules, workers=4) as nginx, ThreadPoolExecutor(1) as beside:
            assert guard.check(Request("GET", "/buy", query="sku=7", peer="127.0.0.1"))
            counted = beside.submit(passed_by_python, guard, LIMIT)
            assert passed_by_nginx(nginx, LIMIT) + counted.result() + 1 == LIMIT
            assert "unreachable" not in nginx.log
    finally:
        guard.close()


@pytest.mark.parametrize("algo", ["TB", "W, align: first", "SW", "SL"])
def test_a_limit_shared_with_python_admits_exactly_that_many(
    redis7: Server, tmp_path: Path, algo: str
) -> None:
    redis7.ask("FLUSHALL")
    rules = SHARED.format(store=redis7.url, limit=LIMIT, algo=algo)
    if algo == "SL":
        rules = rules.replace("scope: global", "scope: global, when_down: closed")
    is_shared_exactly(rules, tmp_path)


def test_in_a_cluster_too_where_each_rule_may_be_in_another_slot(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.flush()
    is_shared_exactly(SHARED.format(store=cluster.url, limit=LIMIT, algo="TB"), tmp_path)


def test_a_denial_of_one_slot_gives_back_what_another_has_charged(cluster: Cluster) -> None:
    cluster.flush()
    limit = 900  # more than can be looked while it is given back
    rules = SHARED.format(store=cluster.url, limit=limit, algo="TB").replace("rpu: 1000", "rpu: 1")
    with LimitingNginx(rules) as nginx:
        assert passed_by_nginx(nginx, 5) == 1

        looks = count()

        def is_back() -> bool:
            # One of the five has passed, and so does each that looks.
            look = next(looks)
            told = httpx.get(f"{nginx.url}/buy?sku=another{look}", timeout=60).headers["RateLimit"]
            return f'"everyone";r={limit - 2 - look};' in told

        until(is_back, "what was charged is given back")


def test_slots_that_move_are_followed(cluster: Cluster) -> None:
    cluster.flush()
    rules = SHARED.format(store=cluster.url, limit=9, algo="W, align: first")
    counter = "diana:everyone|all|global|W|day|="
    slot = cluster.slot_of_key(counter)
    with LimitingNginx(rules) as nginx:
        assert passed_by_nginx(nginx, 2) == 2
        first = cluster.node_of_slot(slot)
        second = next(one for one in cluster.masters() if one is not first)
        cluster.move_slot(slot, second)
        assert passed_by_nginx(nginx, 2) == 2
        cluster.begin_move(slot, first)
        assert passed_by_nginx(nginx, 2) == 2
        cluster.carry_keys(slot)
        assert passed_by_nginx(nginx, 2) == 2
        cluster.finish_move(slot)
        assert passed_by_nginx(nginx, 5) == 1
        assert "unreachable" not in nginx.log


@pytest.fixture(scope="module")
def local() -> Iterator[LimitingNginx]:
    rules = """
limits:
  - url: /tb
    rules: [{name: tb, unit: day, rpu: 50}]
  - url: /lb
    rules: [{name: lb, unit: day, rpu: 50, algo: LB, burst: 49, nodelay: true}]
  - url: /w
    rules: [{name: w, unit: day, rpu: 50, algo: W, align: first}]
  - url: /sw
    rules: [{name: sw, unit: day, rpu: 50, algo: SW}]
  - url: /both
    rules: [{name: both by ip, actor: ip, unit: day, rpu: 50}, {name: both, unit: day, rpu: 20, cost: 2, algo: W, align: first}]
"""
    with LimitingNginx(rules, workers=4) as nginx:
        yield nginx


@pytest.mark.parametrize(("path", "limit"), [("/tb", 50), ("/lb", 50), ("/w", 50), ("/sw", 50)])
def test_local_rules_are_exact_with_four_workers(
    local: LimitingNginx, path: str, limit: int
) -> None:
    assert passed_by_nginx(local, 2 * limit, path) == limit


def test_local_rules_are_all_or_nothing(local: LimitingNginx) -> None:
    assert passed_by_nginx(local, 30, "/both") == 10
    assert httpx.get(f"{local.url}/both", timeout=60).headers["RateLimit"].startswith('"both";r=0')


def test_a_denial_of_the_store_gives_back_what_was_charged_here(redis7: Server) -> None:
    redis7.ask("FLUSHALL")
    rules = f"""
store: {redis7.url}
store_budget: 10s
limits:
  - url: /
    rules:
      - {{name: here, unit: day, rpu: 100, algo: W, align: first}}
      - {{name: there, unit: day, rpu: 3, scope: global}}
"""
    with LimitingNginx(rules, workers=2) as nginx:
        assert passed_by_nginx(nginx, 20, "/") == 3
        redis7.ask("FLUSHALL")
        assert '"here";r=96' in httpx.get(nginx.url, timeout=60).headers["RateLimit"]


@pytest.mark.parametrize("scope", ["global", "local"])
def test_a_reload_under_load_loses_no_count(redis7: Server, scope: str) -> None:
    redis7.ask("FLUSHALL")
    limit, times = 150, 400
    rules = SHARED.format(store=redis7.url, limit=limit, algo="W, align: first")
    rules = rules.replace("first, scope: global", f"first, scope: {scope}")

    async def ask(nginx: LimitingNginx, reload: Callable[[], Awaitable[None]]) -> int:
        async with httpx.AsyncClient(
            limits=httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0), timeout=60
        ) as client:
            replies, _ = await asyncio.gather(
                asyncio.gather(*[client.get(nginx.url + "/?sku=1") for _ in range(times)]), reload()
            )
        return [reply.status_code for reply in replies].count(200)

    with LimitingNginx(rules, workers=4) as nginx:

        async def reload() -> None:
            for _ in range(3):
                await asyncio.to_thread(nginx.reload)

        assert asyncio.run(ask(nginx, reload)) == limit
