"""Permits that are leased: what a decision costs, what a fleet uses of a limit, and how often it asks the store.

In one process against a decision in memory and against libraries that ask Redis each time; four real processes on one Valkey, loaded 100 to
10 to 1 to 0; and simulated fleets of 4, 32 and 256 nodes, loaded as unevenly as 1, 1/2, 1/3 and so on. Offered is twice the limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import limits
import limits.storage
import limits.strategies
import throttled

from benchmarks.race import Contestant, Times, race
from benchmarks.report import Figure, Section, at_least, at_most
from diana import Guard, Policy, Request
from diana.core.counter import meter_from_limit
from diana.core.limit import Limit
from diana.rules.loading import rules_from_bytes
from diana.runtime.entry_points import algorithms
from diana.stores.memory.python_store import PythonMemoryStore
from diana.stores.redis.store import RedisStore
from diana.stores.zone.store import SharedStore
from tests.servers.programs import PROGRAMS, REDIS_7
from tests.servers.server import Server
from tests.simulation.scenario import Scenario, play
from tests.stores.redis.leases.fleet import (
    LOADS,
    Run,
    could_pass,
    lease,
    most_above_rate,
    most_within,
)
from tests.stores.shared.zones import zone_name

RPU = 10_000
ROUNDS = 3
"""Of real fleets: a busy machine keeps the threads that ask ahead of need waiting, so the best is told; too many would be so in any."""
FLEETS = (4, 32, 256)
ANY = Request("GET", "/")


def run(quick: bool) -> Section:
    figures = [*_one_process(quick), *_real_fleet(quick), *_simulated_fleets(quick)]
    return Section(
        name="leases",
        title="permits that are leased",
        how=_how(quick),
        figures=figures,
        libraries=("diana-limiter", "limits", "throttled-py", "redis", "hiredis"),
        quick=quick,
    )


def _how(quick: bool) -> str:
    turn, rounds = _size(quick)
    return (
        f"One process: {rounds} rounds of {turn} decisions for one hot key, everything allowed, Redis 7 on loopback; all of it in Python. "
        f"Four processes: one Valkey, {RPU:,} per second leased, loaded {'/'.join(map(str, LOADS))}, twice the limit offered as far as the "
        f"machine can; what is used is compared with one counter that is asked at the same moments, in the best of {ROUNDS} rounds. "
        "Simulated: virtual time, replies within 0.2 to 2 ms, clocks that differ; what is used is compared with one counter that all ask "
        "without a network. Too many: above the promise, in any interval of any round."
    )


def _size(quick: bool) -> tuple[int, int]:
    return (200, 20) if quick else (500, 100)


def _policy(scope: str) -> Policy:
    rule = f"{{unit: second, rpu: 100000000, scope: {scope}}}"
    return rules_from_bytes(f"store_budget: 1s\nlimits: [{{url: /, rules: [{rule}]}}]".encode())


def _one_process(quick: bool) -> Iterator[Figure]:
    turn, rounds = _size(quick)
    meter = meter_from_limit("diana:x", Limit(100_000_000, 1_000_000), algorithms()["TB"], {})
    with Server(REDIS_7) as server, zone_name() as name:
        zone = SharedStore(name, kind="python")
        workers = RedisStore.from_url(server.url, budget_us=1_000_000, zone=zone)
        memory, store = PythonMemoryStore(), RedisStore.from_url(server.url, budget_us=1_000_000)
        local, leased = Guard(_policy("global"), memory), Guard(_policy("leased"), server.url)
        fixed = limits.strategies.FixedWindowRateLimiter(limits.storage.RedisStorage(server.url))
        often = limits.parse("1000000000/minute")
        bucket = throttled.Throttled(
            using="token_bucket",
            quota=throttled.per_sec(100_000_000, burst=100_000_000),
            store=throttled.RedisStore(server=server.url),
        )
        contestants = [
            Contestant("in memory", memory.bind(meter)),
            Contestant("leased", store.leased.bind(meter)),
            Contestant("in a zone", zone.bind(meter)),
            Contestant("leased in a zone", workers.leased.bind(meter)),
            Contestant("in memory, a rule", lambda _: local.check(ANY)),
            Contestant("leased, a rule", lambda _: leased.check(ANY)),
            Contestant("limits", lambda key: fixed.hit(often, key)),
            Contestant("throttled", lambda key: not bucket.limit(key).limited),
        ]
        times = race(contestants, ["hot"] * turn, turn=turn, rounds=rounds)
        counts = leased._evaluator.shared.counts()  # type: ignore[attr-defined]
        store.close()
        workers.close()
        leased.close()
    for one in contestants:
        yield _in_one_process(one.name, times)
    trips = counts["trips"] / counts["decisions"]
    yield Figure("one process, trips per decision", trips, "", goals=(at_most(trips, 0.02, ""),))


_COUNTED_HERE = {
    "leased": "in memory",
    "leased in a zone": "in a zone",
    "leased, a rule": "in memory, a rule",
}


def _in_one_process(name: str, times: Times) -> Figure:
    if not name.startswith("leased"):
        return Figure(f"one process, {name}", times.median_us(name), "µs")
    here = _COUNTED_HERE[name]
    best = times.fastest(["limits", "throttled"])
    slower, faster = times.ratio(name, to=here), times.ratio(best, to=name)
    goals = [at_most(slower, 2, f"× {here}")]
    if name == "leased":  # a rule finds out first who asks and what applies; the others are told
        goals.append(at_least(faster, 50, "× as fast"))
    ratios = {f"× {here}": slower, f"× as fast as {best} through Redis": faster}
    return Figure(f"one process, {name}", times.median_us(name), "µs", ratios, goals=tuple(goals))


def _real_fleet(quick: bool) -> Iterator[Figure]:
    for code in ("SW", "TB"):
        runs = []
        for _ in range(1 if quick else ROUNDS):
            with Server(PROGRAMS["Valkey 9"]) as server:
                runs.append(lease(server.url, code, RPU, seconds=3.3))
        above = max(0, max(_above(code, run) for run in runs))
        yield Figure(f"4 processes, {code}, too many", above, "", goals=(at_most(above, 0, ""),))
        used, best = max(
            (100 * len(run.admissions) / could_pass(run, code, RPU), place)
            for place, run in enumerate(runs)
        )
        note = f"{runs[best].decisions / 3.3:,.0f} offered per second"
        goals = (at_least(used, 97, "%"),)
        yield Figure(f"4 processes, {code}, used of the limit", used, "%", note=note, goals=goals)
        trips = runs[best].trips_per_decision
        goals = (at_most(trips, 0.02, ""),)
        yield Figure(f"4 processes, {code}, trips per decision", trips, "", goals=goals)


def _above(code: str, run: Run) -> int:
    if code == "SW":
        return most_within(run.admissions, 1.0) - RPU
    return int(most_above_rate(run.admissions, RPU) - RPU)


def _simulated_fleets(quick: bool) -> Iterator[Figure]:
    for nodes in FLEETS[: 2 if quick else None]:
        whole = sum(1 / (number + 1) for number in range(nodes))
        loads = tuple(2 * RPU / (number + 1) / whole for number in range(nodes))
        for code in ("SW", "TB"):
            outcome = play(
                Scenario(1, code, RPU, loads=loads, seconds=3.3, latency_us=(100, 1_000))
            )
            name = f"{nodes} simulated nodes, {code}"
            above = max(0.0, outcome.excess().above)
            yield Figure(f"{name}, too many", above, "", goals=(at_most(above, 0, ""),))
            used = 100 * outcome.share_used()
            yield Figure(f"{name}, used of the limit", used, "%", goals=(at_least(used, 97, "%"),))
            trips = outcome.trips_per_decision
            goals = (at_most(trips, 0.02, ""),) if nodes == FLEETS[0] else ()
            yield Figure(f"{name}, trips per decision", trips, "", goals=goals)
