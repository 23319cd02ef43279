"""Four nodes, each a process, that lease from one store while the load on them is as uneven as 100 to 10 to 1 to 0."""

from __future__ import annotations

import multiprocessing
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from diana import Guard, Policy, Request
from diana.rules.loading import rules_from_bytes
from diana.stores.redis.store import RedisStore

LOADS = (100, 10, 1, 0)
TICK = 0.002
ANY = Request("GET", "/")


class Admission(NamedTuple):
    """It was made between these moments of the machine's own clock, which all processes share."""

    asked: float
    told: float


class Tally(NamedTuple):
    asked: list[float]
    """When it was asked, in vain or not."""
    admissions: list[Admission]
    decisions: int
    trips: int
    degraded: int


class Run(NamedTuple):
    nodes: list[Tally]

    @property
    def admissions(self) -> list[Admission]:
        return [one for node in self.nodes for one in node.admissions]

    @property
    def decisions(self) -> int:
        return sum(node.decisions for node in self.nodes)

    @property
    def trips_per_decision(self) -> float:
        return sum(node.trips for node in self.nodes) / max(1, self.decisions)

    @property
    def degraded(self) -> int:
        return sum(node.degraded for node in self.nodes)


def policy(code: str, rpu: int) -> Policy:
    rule = f"{{unit: second, rpu: {rpu}, algo: {code}, scope: leased, when_down: closed}}"
    return rules_from_bytes(f"store_budget: 10s\nlimits: [{{url: /, rules: [{rule}]}}]".encode())


def lease(url: str, code: str, rpu: int, seconds: float, times: float = 2.0) -> Run:
    """Offer so many times the limit for so long."""
    with _nodes(url, code, rpu) as pipes:
        begin = time.monotonic() + 0.2
        for pipe, load in zip(pipes, LOADS, strict=True):
            pipe.send((begin, begin + seconds, times * rpu * load / sum(LOADS)))
        return Run([_answer(pipe, 60 + seconds) for pipe in pipes])


@contextmanager
def _nodes(url: str, code: str, rpu: int) -> Iterator[list[Any]]:
    spawn = multiprocessing.get_context("spawn")
    pairs = [spawn.Pipe() for _ in LOADS]
    nodes = [spawn.Process(target=_node, args=(url, code, rpu, end)) for _, end in pairs]
    try:
        for process in nodes:
            process.start()
        for mine, _ in pairs:
            assert _answer(mine, 60) == "ready"
        yield [mine for mine, _ in pairs]
    finally:
        for process in nodes:
            process.kill()
            process.join()
        for end in (end for pair in pairs for end in pair):
            end.close()


def _node(url: str, code: str, rpu: int, pipe: Connection) -> None:
    guard = Guard(policy(code, rpu), url)
    store = guard._evaluator.shared
    assert isinstance(store, RedisStore)
    while store.shares.share.total < len(LOADS):
        time.sleep(0.01)
    pipe.send("ready")
    begin, end, per_second = pipe.recv()
    admissions: list[Admission] = []
    attempts: list[float] = []
    time.sleep(max(0.0, begin - time.monotonic()))
    owed, last = 0.0, begin
    while (now := time.monotonic()) < end:
        # What could not be offered in time is not offered later: a busy machine offers less.
        owed = min(owed + (now - last) * per_second, per_second * 0.05)
        last = now
        for _ in range(int(owed)):
            asked = time.monotonic()
            attempts.append(asked)
            if guard.check(ANY):
                admissions.append(Admission(asked, time.monotonic()))
        owed -= int(owed)
        time.sleep(TICK)
    counts = store.counts()
    guard.close()
    pipe.send(Tally(attempts, admissions, counts["decisions"], counts["trips"], counts["degraded"]))
    pipe.recv()


def _answer(pipe: Any, seconds: float) -> Any:
    assert pipe.poll(seconds)
    return pipe.recv()


def could_pass(run: Run, code: str, rpu: int) -> int:
    """What one counter would let pass that is asked at the same moments."""
    meter = policy(code, rpu).rules[0].meter
    state, passed = None, 0
    for asked in sorted(asked for node in run.nodes for asked in node.asked):
        state, outcome = meter.decide(state, meter.params, 1, int(asked * 1_000_000))
        passed += outcome[0]
    return passed


def most_within(admissions: Sequence[Admission], seconds: float) -> int:
    """The most that were certainly made within one interval of this length."""
    asked = sorted(one.asked for one in admissions)
    told = sorted(one.told for one in admissions)
    return max(
        (place - bisect_right(asked, moment - seconds) for place, moment in enumerate(told, 1)),
        default=0,
    )


def most_above_rate(admissions: Sequence[Admission], per_second: float) -> float:
    """The most, in any interval, above what the rate alone allows in it."""
    events = sorted([(one.asked, 0) for one in admissions] + [(one.told, 1) for one in admissions])
    begun = made = 0
    worst, least = 0.0, 0.0
    start = events[0][0] if events else 0.0
    for moment, is_told in events:
        allowed = (moment - start) * per_second
        if is_told:
            made += 1
            worst = max(worst, made - allowed - least)
        else:
            # An interval that begins here holds none of those that were asked for before.
            least = min(least, begun - allowed)
            begun += 1
    return worst
