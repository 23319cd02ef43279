"""The gateway against a bare pass-through of itself: what do rules cost there?

Three processes stand side by side in front of one sample service and are asked by wrk in turns, in short rounds; a ratio is the median of
the ratios within each round. Needs wrk: `.ci/install bench`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from statistics import median

from benchmarks.report import Figure, Section, at_most

RULES = b"""
limits:
  - url: /
    rules:
      - {actor: ip, unit: hour, rpu: 1000000000}
      - {actor: header X-Account-Id, unit: hour, rpu: 1000000000}
  - url: /api
    rules:
      - {actor: all, unit: hour, rpu: 1000000000}
"""
BARE, LIMITED, LOGGED = "bare pass-through", "three local rules", "three local rules, access log"
CONNECTIONS = 32
FOUND = re.compile(r"Requests/sec:\s+([0-9.]+)")


def run(quick: bool) -> Section:
    if shutil.which("wrk") is None:
        raise SystemExit("the race `gateway` needs wrk; run .ci/install bench")
    rounds, seconds = (3, 1) if quick else (15, 2)
    rates = _raced(rounds, seconds)
    figures = []
    for name, measured in rates.items():
        below = 1 - median(mine / bare for mine, bare in zip(measured, rates[BARE], strict=True))
        goals = (at_most(below * 100, 8, "% below"),) if name == LIMITED else ()
        ratios = {} if name == BARE else {"% below the bare one": below * 100}
        figures.append(Figure(name, median(measured), "requests/s", ratios, goals=goals))
    return Section(
        name="gateway",
        title="the gateway against a bare pass-through of itself",
        how=f"wrk, one thread, {CONNECTIONS} connections that stay open, {seconds} s per turn, {rounds} rounds in drawn order; an answer "
        "of 30 bytes from the sample service in a process of its own; wrk, gateway and service share the machine's cores. The rules "
        "count by address, by header and in total, and their header lines are on.",
        figures=figures,
        libraries=("diana-limiter", "uvicorn", "aiohttp", "uvloop", "httptools"),
        quick=quick,
    )


def _raced(rounds: int, seconds: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {BARE: [], LIMITED: [], LOGGED: []}
    draw = Random(1)
    with ExitStack() as stack:
        service = stack.enter_context(_started("service", ""))
        ports = {name: stack.enter_context(_started(name, service)) for name in rates}
        for port in ports.values():
            _asked(port, 1)
        for _ in range(rounds):
            for name in draw.sample(list(ports), len(ports)):
                rates[name].append(_asked(ports[name], seconds))
    return rates


def _asked(port: str, seconds: int) -> float:
    """Requests per second; one that did not pass is an error of the race."""
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-H", "X-Account-Id: alice"]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/api/things?page=1"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = FOUND.search(done.stdout)
    if found is None or "Non-2xx" in done.stdout:
        raise AssertionError(f"not every request passed:\n{done.stdout}")
    return float(found[1])


@contextmanager
def _started(what: str, upstream: str) -> Iterator[str]:
    """A process of its own, stopped by its own pid; gives its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway", what, upstream],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def _serve(what: str, upstream: str) -> None:
    from diana.gateway.chain import gateway
    from diana.gateway.proxy import Proxy
    from diana.gateway.sample import sample
    from diana.gateway.server import bound_socket, serve
    from diana.gateway.upstream import upstream_from_url
    from diana.middleware.asgi import App
    from diana.sources.file import rules_from_bytes

    policy = rules_from_bytes(RULES)
    app: App = sample
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        if what != "service":
            target = upstream_from_url(f"http://127.0.0.1:{upstream}")
            log = nowhere if what == LOGGED else None
            bare = Proxy(target, policy.settings.proxies)
            app = bare if what == BARE else gateway(policy, target, access_log=log)
        with bound_socket("127.0.0.1", 0) as listening:
            print(listening.getsockname()[1], flush=True)
            serve(app, listening, grace_seconds=1)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
