"""Taking a place and giving it back, against one decision of a token bucket: in memory, and through a real server on this machine.

In memory the token bucket is measured twice: as it is built (in C where there was a compiler), and in Python, as places are counted.
Through the server each release is a script call of its own, which nobody waits for.
"""

from __future__ import annotations

import asyncio
from itertools import count
from statistics import median
from time import perf_counter

from benchmarks.race import Contestant, Times, race
from benchmarks.report import Figure, Section, at_most
from diana import AsyncLimiter, Limiter
from diana.slots.slot_renewer import flush
from diana.stores.memory.python_store import PythonMemoryStore
from tests.servers.programs import REDIS_7
from tests.servers.server import Server

RATE = "1000000000/minute"
PLACES = "100000 at once"
TASKS = 64
MOST = 2.5
"""Times one decision of a token bucket."""


def run(quick: bool) -> Section:
    with Server(REDIS_7) as server:
        figures = [*_in_memory(quick), *_through_a_server(server, quick), *_together(server, quick)]
    return Section(
        name="places",
        title="taking a place and giving it back",
        how="One key; everything is allowed. Ratios are of turns that follow each other. "
        + str(__doc__).split("\n\n")[1],
        figures=figures,
        libraries=("diana-limiter",),
        quick=quick,
    )


def _in_memory(quick: bool) -> list[Figure]:
    bucket, places = Limiter(RATE), Limiter(PLACES)
    in_python = Limiter(RATE, store=PythonMemoryStore(), name="bucket")

    def pair(key: str) -> object:
        decision = places.take(key)
        places.refund(decision)
        return decision

    def slot(key: str) -> object:
        with places.slot(key) as decision:
            return decision

    contestants = [
        Contestant("TB in Python", in_python.take),
        Contestant("TB as built", bucket.take),
        Contestant("take and refund", pair),
        Contestant("with slot", slot),
    ]
    times = race(contestants, ["user"] * 2_000, turn=2_000, rounds=20 if quick else 100)
    return [
        Figure(
            f"in memory: {one.name}",
            times.median_us(one.name),
            "µs",
            {
                "× TB in Python": times.ratio(one.name),
                "× TB as built": times.ratio(one.name, "TB as built"),
            },
            goals=(at_most(times.ratio(one.name), MOST, "× TB in Python"),)
            if one.name == "take and refund"
            else (),
        )
        for one in contestants
    ]


def _through_a_server(server: Server, quick: bool) -> list[Figure]:
    bucket = Limiter(RATE, store=server.url, name="bucket")
    places = Limiter(PLACES, store=server.url, name="places")

    def slot(key: str) -> object:
        with places.slot(key) as decision:
            return decision

    contestants = [
        Contestant("TB", bucket.take, settle=flush),
        Contestant("with slot", slot, settle=flush),
    ]
    fresh = (f"user:{number}" for number in count())
    turn, rounds = (100, 10) if quick else (200, 60)
    keys = [next(fresh) for _ in range(turn * (rounds + 1))]
    times: Times = race(contestants, keys, turn=turn, rounds=rounds)
    bucket.close()
    places.close()
    ratio = times.ratio("with slot")
    return [
        Figure("through a server, one by one: TB", times.median_us("TB"), "µs"),
        Figure(
            "through a server, one by one: with slot",
            times.median_us("with slot"),
            "µs",
            {"× TB": ratio},
            goals=(at_most(ratio, MOST, "× TB"),),
        ),
    ]


def _together(server: Server, quick: bool) -> list[Figure]:
    """Of many tasks in one loop: decisions, or places taken and given back, all of them until the last is given back."""
    each, rounds = (20, 5) if quick else (50, 20)

    async def main() -> list[tuple[float, float]]:
        bucket = AsyncLimiter(RATE, store=server.url, name="bucket")
        places = AsyncLimiter(PLACES, store=server.url, name="places")

        async def take(number: int) -> None:
            for turn in range(each):
                assert await bucket.take(f"{number} {turn}")

        async def slot(number: int) -> None:
            for turn in range(each):
                async with places.slot(f"{number} {turn}"):
                    pass

        measured = []
        for _ in range(rounds):
            times = []
            for act in (take, slot):
                began = perf_counter()
                await asyncio.gather(*(act(number) for number in range(TASKS)))
                times.append((perf_counter() - began) / TASKS / each * 1e6)
            measured.append((times[0], times[1]))
        await bucket.close()
        await places.close()
        return measured

    measured = asyncio.run(main())[1:]
    ratio = median(slot / take for take, slot in measured)
    return [
        Figure(f"through a server, {TASKS} tasks: TB", median(take for take, _ in measured), "µs"),
        Figure(
            f"through a server, {TASKS} tasks: with slot",
            median(slot for _, slot in measured),
            "µs",
            {"× TB": ratio},
            goals=(at_most(ratio, MOST, "× TB"),),
        ),
    ]
