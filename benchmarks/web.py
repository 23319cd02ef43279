"""A web application bare, and behind limiters: how many requests does it still answer?

Every application is a process, uvicorn with uvloop and httptools; see `web_apps` for what they are, `wrk` for how they are asked.
"""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.report import Figure, Section, at_most
from benchmarks.web_apps import APPS
from benchmarks.wrk import (
    CONNECTIONS,
    NotStarted,
    Served,
    Turns,
    in_turns,
    median_cpu_us,
    median_rate,
    need_wrk,
    percent_below,
    started,
)
from tests.servers.programs import REDIS_7
from tests.servers.server import Server

MOST_BELOW = {"FastAPI, Diana, 3 local rules": 10, "FastAPI, Diana, 3 global rules": 25}
"""Percent."""


def run(quick: bool) -> Section:
    need_wrk("web")
    starts, rounds, seconds = (1, 3, 1) if quick else (6, 3, 1)
    turns, absent = _raced(starts, rounds, seconds)
    return Section(
        name="web",
        title="a web application behind limiters",
        how=f"wrk, one thread, {CONNECTIONS} connections that stay open, {seconds} s per turn, {rounds} rounds in drawn order; then all "
        f"are started anew, {starts} times in all. One JSON route on one worker of uvicorn with uvloop and httptools, access log off; "
        "wrk, application and Redis 7 share the machine's cores. Three rules or limits count by address, by header and in total, one by "
        "address; nobody is denied. Diana writes its header lines; the others write none, as is their default. Diana may wait a second "
        "for its store, so that no hiccup of the machine makes a decision a cheaper one. slowapi is a decorator per limit with its ASGI "
        "middleware, except where its default one is named; fastapi-limiter a dependency per limit. The loss is against the same "
        f"application bare, the processor time that of the application's process alone.{''.join(absent)}",
        figures=[_figure(name, turns) for name in turns],
        libraries=("diana-limiter", "fastapi", "uvicorn", "slowapi", "fastapi-limiter", "redis"),
        quick=quick,
    )


def _raced(starts: int, rounds: int, seconds: int) -> tuple[Turns, list[str]]:
    """The turns of all that run, and a sentence on each that does not."""
    # A process keeps the luck of its memory layout for life, several percent of it: so nobody races with one process only.
    turns: Turns = {}
    absent: list[str] = []
    with Server(REDIS_7) as redis:
        for start in range(starts):
            with ExitStack() as stack:
                servers, absent = _started(stack, redis.url)
                for name, some in in_turns(servers, rounds, seconds, seed=start).items():
                    turns.setdefault(name, []).extend(some)
    return turns, absent


def _started(stack: ExitStack, url: str) -> tuple[dict[str, Served], list[str]]:
    servers, absent = {}, []
    for name in APPS:
        try:
            servers[name] = stack.enter_context(started("benchmarks.web_apps", name, url))
        except NotStarted as error:
            absent.append(f" Not measured: {name}, which does not start ({error}).")
    return servers, absent


def _figure(name: str, turns: Turns) -> Figure:
    mine = turns[name]
    ratios = {"µs of processor time": median_cpu_us(mine)}
    goals = []
    bare = f"{name.partition(',')[0]}, bare"
    if name != bare:
        below = percent_below(mine, turns[bare])
        ratios = {"% below bare": below, **ratios}
        if name in MOST_BELOW:
            goals = [at_most(below, MOST_BELOW[name], "% below bare")]
    return Figure(name, median_rate(mine), "requests/s", ratios, goals=tuple(goals))
