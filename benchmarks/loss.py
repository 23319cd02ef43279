"""What a lost store costs: how long requests are held, how soon it is back, what a fleet admits meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import NamedTuple

from benchmarks.report import Figure, Section, at_most
from tests.servers.programs import REDIS_7
from tests.servers.proxy import FaultProxy
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.stores.redis.callers import CALLERS, InTasks, InThreads, opened, until_asked, window
from tests.stores.redis.fleet import NODES, RATE, cut_off

BUDGET_MS = 50
MOST_MS = BUDGET_MS + 10
BACK_SECONDS = 3
STALL_MS = 5


class Loss(NamedTuple):
    strike: Callable[[Server, FaultProxy], None]
    heal: Callable[[Server, FaultProxy], None]


LOSSES = {
    "frozen": Loss(lambda server, _: server.freeze(), lambda server, _: server.thaw()),
    "refusing": Loss(lambda _, proxy: proxy.refuse(), lambda _, proxy: proxy.pass_on()),
    "black hole": Loss(lambda _, proxy: proxy.black_hole(), lambda _, proxy: proxy.pass_on()),
    "garbage": Loss(lambda _, proxy: proxy.garbage(), lambda _, proxy: proxy.pass_on()),
}


def run(quick: bool) -> Section:
    losses = ["frozen"] if quick else list(LOSSES)
    figures = [
        figure for name in losses for figure in _figures(name, 1 if quick else 3, 0 if quick else 3)
    ]
    seconds = 2 if quick else 10
    return Section(
        name="loss",
        title="what a lost store costs",
        how=f"{CALLERS} threads, then {CALLERS} tasks, ask all the time with a budget of {BUDGET_MS} ms; the server is lost for a "
        "while, in the middle of it. The slowest request of all, the slowest of those that came when the loss was known, the longest time "
        "until nobody is told anything degraded, and the longest time that the event loop was late for a task, in the least disturbed of "
        f"the rounds. Then {NODES} nodes, each a process, are cut off for {seconds} s, with ten times the limit asked of them.",
        figures=[*figures, *_fleet_figures(seconds)],
        libraries=("diana-limiter", "redis", "hiredis"),
        quick=quick,
    )


def _figures(name: str, rounds: int, seconds: int) -> Iterator[Figure]:
    for side in (InThreads, InTasks):
        slowest = alone = back = 0.0
        stalls: list[float] = []
        for _ in range(rounds):
            with Server(REDIS_7) as server, FaultProxy(server.port) as proxy:
                url = server.url if name == "frozen" else proxy.url
                with opened(url, BUDGET_MS / 1_000) as store:
                    until_asked(store, window())
                    with side(store, window()) as callers:
                        LOSSES[name].strike(server, proxy)
                        until(lambda store=store: store.lost, "the loss is known")  # type: ignore[misc]
                        known = monotonic()
                        callers.until_degraded(500)
                        until(lambda known=known: monotonic() > known + seconds, "it was long")  # type: ignore[misc]
                        alone = max(alone, callers.slowest(known))
                        LOSSES[name].heal(server, proxy)
                        back = max(back, callers.until_global())
                    slowest = max(slowest, callers.slowest())
                    stalls.append(callers.longest_stall)
        who = f"{name}, {'threads' if side is InThreads else 'tasks'}"
        goal = at_most(slowest * 1e3, MOST_MS, "ms")
        yield Figure(f"{who}: slowest request", slowest * 1e3, "ms", goals=(goal,))
        yield Figure(f"{who}: slowest once known", alone * 1e3, "ms")
        yield Figure(f"{who}: back", back, "s", goals=(at_most(back, BACK_SECONDS, "s"),))
        if side is InTasks:
            # The least disturbed round: on a busy machine an idle loop is late by as much.
            stall = min(stalls)
            goal = at_most(stall * 1e3, STALL_MS, "ms")
            yield Figure(f"{who}: event loop late by", stall * 1e3, "ms", goals=(goal,))


def _fleet_figures(seconds: int) -> Iterator[Figure]:
    outage = cut_off(seconds)
    yield Figure(
        f"a fleet of {NODES}, limit {RATE} per second",
        outage.admitted,
        "admitted",
        note=f"{outage.here:,} of them while cut off",
        goals=(at_most(outage.admitted, round(outage.bound), "admitted"),),
    )
    yield Figure(
        "charged beyond what was admitted",
        outage.charged,
        "",
        note="caught between counting and answering",
        goals=(at_most(outage.charged, NODES, ""),),
    )
