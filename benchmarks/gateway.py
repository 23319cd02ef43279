"""The gateway against a bare pass-through of itself: what do rules cost there?

Three processes stand side by side in front of one sample service; see `wrk` for how they are asked.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from benchmarks.report import Figure, Section, at_most
from benchmarks.wrk import (
    CONNECTIONS,
    Turns,
    in_turns,
    median_rate,
    need_wrk,
    percent_below,
    started,
)

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


def run(quick: bool) -> Section:
    need_wrk("gateway")
    rounds, seconds = (3, 1) if quick else (15, 2)
    turns = _raced(rounds, seconds)
    figures = []
    for name, mine in turns.items():
        below = percent_below(mine, turns[BARE])
        goals = (at_most(below, 8, "% below"),) if name == LIMITED else ()
        ratios = {} if name == BARE else {"% below the bare one": below}
        figures.append(Figure(name, median_rate(mine), "requests/s", ratios, goals=goals))
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


def _raced(rounds: int, seconds: int) -> Turns:
    with ExitStack() as stack:
        service = stack.enter_context(started("benchmarks.gateway", "service", ""))
        upstream = str(service.port)
        gateways = {
            name: stack.enter_context(started("benchmarks.gateway", name, upstream))
            for name in (BARE, LIMITED, LOGGED)
        }
        return in_turns(gateways, rounds, seconds)


def _serve(what: str, upstream: str) -> None:
    from diana.gateway.app import gateway
    from diana.gateway.proxy import Proxy
    from diana.gateway.sample_app import sample
    from diana.gateway.server import bound_socket, serve
    from diana.gateway.upstream import upstream_from_url
    from diana.guard import AsyncGuard
    from diana.rules.loading import rules_from_bytes
    from diana.web.asgi_types import App

    policy = rules_from_bytes(RULES)
    app: App = sample
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        if what != "service":
            target = upstream_from_url(f"http://127.0.0.1:{upstream}")
            log = nowhere if what == LOGGED else None
            bare = Proxy(target, policy.settings.proxies)
            app = bare if what == BARE else gateway(AsyncGuard(policy), target, access_log=log)
        with bound_socket("127.0.0.1", 0) as listening:
            print(listening.getsockname()[1], flush=True)
            serve(app, listening, grace_seconds=1)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
