"""What limiting costs in nginx: bare, with its own `limit_req`, with Diana's Lua, and Diana's gateway beside it; needs wrk.

All of them pass on to one and the same small nginx, which answers 30 bytes. Each has one worker. And: how long a request is held when
Redis is frozen.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from statistics import median
from time import perf_counter
from typing import NamedTuple

import httpx

from benchmarks.report import Figure, Section, at_most
from benchmarks.wrk import CONNECTIONS, RATE, TARGET, need_wrk, started
from tests.servers.limiting_nginx import LimitingNginx
from tests.servers.nginx import PROGRAM
from tests.servers.ports import HOST
from tests.servers.process import Process
from tests.servers.programs import REDIS_7
from tests.servers.server import Server

BARE, LIMIT_REQ, LOCAL, ONE_REDIS, GATEWAY = (
    "nginx, bare",
    "nginx, limit_req by address",
    "nginx, Lua, two local rules",
    "nginx, Lua, one rule in Redis",
    "Diana's gateway, three local rules",
)
BUDGET_MS = 50
P99 = re.compile(r"99%\s+([0-9.]+)(us|ms|s)")
MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}

LOCAL_RULES = """
limits:
  - url: /
    rules:
      - {actor: ip, unit: hour, rpu: 1000000000}
      - {actor: header X-Account-Id, unit: hour, rpu: 1000000000}
"""
GLOBAL_RULES = f"""
store_budget: {BUDGET_MS}ms
limits:
  - {{url: /, rules: [{{actor: ip, unit: hour, rpu: 1000000000, scope: global, when_down: open}}]}}
"""


class Turn(NamedTuple):
    rate: float
    p99_ms: float


class Service(Process):
    """Answers by itself."""

    ready = b"start worker process"

    def _command(self, port: int) -> list[str]:
        configuration = self.folder / "nginx.conf"
        configuration.write_text(
            f"daemon off; worker_processes 1; pid {self.folder}/nginx.pid; error_log stderr notice; events {{ }}\n"
            f"http {{ access_log off; server {{ listen {HOST}:{port}; keepalive_requests 10000000;\n"
            "location / { return 200 '0123456789abcdefghijklmnopqrst'; } } }"
        )
        return [PROGRAM, "-p", str(self.folder), "-c", str(configuration)]


def run(quick: bool) -> Section:
    need_wrk("nginx")
    rounds, seconds = (3, 1) if quick else (7, 2)
    with Service() as service, Server(REDIS_7) as redis:
        turns = _raced(service, redis, rounds, seconds)
        held_ms = _held_ms(redis)
    figures = []
    for name, mine in turns.items():
        ratio = median(one.rate / bare.rate for one, bare in zip(mine, turns[BARE], strict=True))
        note = f"p99 {median(one.p99_ms for one in mine):.1f} ms"
        ratios = {} if name == BARE else {"× bare": ratio}
        figures.append(
            Figure(name, median(one.rate for one in mine), "requests/s", ratios, note=note)
        )
    figures.append(
        Figure(
            "longest wait when Redis freezes",
            held_ms,
            "ms",
            note=f"budget {BUDGET_MS} ms",
            goals=(at_most(held_ms, BUDGET_MS + 10, "ms"),),
        )
    )
    return Section(
        name="nginx",
        title="limiting in nginx",
        how=f"wrk, one thread, {CONNECTIONS} connections that stay open, {seconds} s per turn, {rounds} rounds in drawn order; one worker "
        "each, before an nginx that answers 30 bytes; wrk, both nginx and Redis share the machine's cores. Of the freeze: the longest of "
        "30 requests, one after the other, as the client sees it; the best of three freezes, since a busy machine adds its own.",
        figures=figures,
        quick=quick,
    )


def _raced(service: Service, redis: Server, rounds: int, seconds: int) -> dict[str, list[Turn]]:
    with ExitStack() as stack:
        ports = {
            name: stack.enter_context(_contestant(name, service, redis))
            for name in (BARE, LIMIT_REQ, LOCAL, ONE_REDIS, GATEWAY)
        }
        turns: dict[str, list[Turn]] = {name: [] for name in ports}
        draw = Random(1)
        for port in ports.values():
            _turn(port, 1)
        for _ in range(rounds):
            for name in draw.sample(list(ports), len(ports)):
                turns[name].append(_turn(ports[name], seconds))
        return turns


@contextmanager
def _contestant(name: str, service: Service, redis: Server) -> Iterator[int]:
    if name == GATEWAY:
        with started("benchmarks.gateway", "three local rules", str(service.port)) as served:
            yield served.port
        return
    upstream = f"upstream behind {{ server {HOST}:{service.port}; keepalive 64; }}"
    limited = "limit_req zone=each burst=1000000 nodelay;" if name == LIMIT_REQ else ""
    http = f"{upstream}\nlimit_req_zone $binary_remote_addr zone=each:10m rate=1000000r/s;"
    lua = "" if name in (BARE, LIMIT_REQ) else "include diana/limit.conf;"
    store = redis.url if name == ONE_REDIS else None
    rules = GLOBAL_RULES if name == ONE_REDIS else LOCAL_RULES
    passing = 'proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection "";'
    server = f"location /api {{ {limited} {lua} {passing} }}"
    with LimitingNginx(rules, store, http=http, server=server) as nginx:
        yield nginx.port


def _turn(port: int, seconds: int) -> Turn:
    """A request that did not pass is an error of the race."""
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency"]
    command += ["-H", "X-Account-Id: alice", f"http://{HOST}:{port}{TARGET}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate, p99 = RATE.search(said), P99.search(said)
    if rate is None or p99 is None or "Non-2xx" in said:
        raise AssertionError(f"not every request passed:\n{said}")
    return Turn(float(rate[1]), float(p99[1]) * MS[p99[2]])


def _held_ms(redis: Server) -> float:
    best = float("inf")
    with LimitingNginx(GLOBAL_RULES, redis.url) as nginx, httpx.Client(timeout=60) as client:
        for _ in range(3):
            _until_asked(client, nginx)
            redis.freeze()
            longest = 0.0
            for _ in range(30):
                began = perf_counter()
                client.get(nginx.url)
                longest = max(longest, perf_counter() - began)
            redis.thaw()
            best = min(best, longest * 1_000)
    return best


def _until_asked(client: httpx.Client, nginx: LimitingNginx) -> None:
    """The store is asked again: then less remains than all of it."""
    while client.get(nginx.url).headers["RateLimit"].find(";r=1000000000;") >= 0:
        pass
