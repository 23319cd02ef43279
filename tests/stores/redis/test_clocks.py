"""Clocks that disagree and clocks that are set: the server's time counts, and a step of it hurts nobody for long."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest

from diana.core.charge import Charge
from diana.core.counter import CounterSpec
from diana.stores.redis.store import RedisStore
from tests.servers.faketime import ServerInItsOwnTime, library
from tests.servers.server import Server
from tests.stores.redis.counting import SECOND_US, meter, opened
from tests.stores.redis.pushing import ALGORITHMS, narrow

HOUR = 3_600.0
DAY = 24 * HOUR
UNIT_US = 2 * SECOND_US
LIMIT = 10
LONGEST_RESET = 1.1 * UNIT_US / SECOND_US
"""Of a sliding window: its slices and the current one. The others' is the unit."""
BUSY = 0.5
"""What a busy machine may take; not the store's."""

NODE = """
import json, sys, time
from diana.core.charge import Charge
from tests.stores.redis.counting import opened
from tests.stores.redis.pushing import ALGORITHMS, narrow

with opened(sys.argv[1]) as store:
    answer = {"clock": time.time(), "passed": {}, "at": []}
    for code in ALGORITHMS:
        meter = narrow("two clocks", code, 50, 3_600 * 86_400_000_000)
        decisions = [store.decide([Charge(meter, "k")])[0] for _ in range(40)]
        assert not any(decision.degraded for decision in decisions)
        answer["passed"][code] = sum(map(bool, decisions))
        answer["at"] += [decision.at for decision in decisions]
print(json.dumps(answer))
"""


def test_two_nodes_whose_clocks_differ_by_an_hour_agree(redis7: Server) -> None:
    began = time()
    early, late = (_node(redis7.url, offset) for offset in ("+0", "+3600"))
    assert late["clock"] - early["clock"] > HOUR - 60, "the clock is not set"
    for code in ALGORITHMS:
        # Of fifty in ten years, so that nothing leaks and no window ends meanwhile.
        assert (early["passed"][code], late["passed"][code]) == (40, 10), code
    for node in (early, late):
        assert began <= min(node["at"]) / 1e6 <= max(node["at"]) / 1e6 <= time()


@pytest.fixture
def stepped() -> Iterator[ServerInItsOwnTime]:
    with ServerInItsOwnTime() as server:
        yield server


@pytest.mark.parametrize("step", [-2 * HOUR, DAY, -0.5, -1.5], ids=lambda step: f"{step:+g} s")
def test_a_step_blocks_nobody_for_long_and_gives_one_burst_at_most(
    step: float, stepped: ServerInItsOwnTime
) -> None:
    meters = {code: narrow("stepped", code, LIMIT, UNIT_US) for code in ALGORITHMS}
    with opened(stepped.url) as store:
        for some in meters.values():
            _exhaust(store, some)
        stepped.step(step)
        began, admitted, first = monotonic(), Counter[str](), dict[str, float]()
        while len(first) < len(meters) or monotonic() - began < 0.5:
            for code, some in meters.items():
                waited = monotonic() - began
                (decision,) = store.decide([Charge(some, "k")])
                assert not decision.degraded
                if decision:
                    admitted[code] += 1
                    first.setdefault(code, waited)
                elif code not in first:
                    assert waited < LONGEST_RESET + 1 + BUSY, f"{code} is still blocked"
        elapsed_us = int((monotonic() - began) * SECOND_US)
    for code, some in meters.items():
        promised = some.algorithm.promise(some.params, elapsed_us + UNIT_US)
        assert admitted[code] <= promised + LIMIT, f"{code} let {admitted[code]} pass"


@pytest.mark.parametrize("step", [-2 * HOUR, DAY], ids=lambda step: f"{step:+g} s")
def test_tasks_are_not_degraded_by_a_step(step: float, stepped: ServerInItsOwnTime) -> None:
    with opened(stepped.url) as store:

        async def push() -> None:
            side, some, homemade = store.asynchronous, meter("tasks", rpu=10_000), narrow("t", "HM")
            for pushed in range(10):
                if pushed in (3, 6):
                    stepped.step(step)
                asking = [side.decide([Charge(some, str(number))]) for number in range(200)]
                asking.append(side.decide([Charge(homemade, "k")]))
                for (decision,) in await asyncio.gather(*asking):
                    assert decision.allowed
                    assert not decision.degraded

        asyncio.run(push())
        assert store.counts()["breaker_opened"] == 0


def _exhaust(store: RedisStore, some: CounterSpec) -> None:
    for _ in range(10 * LIMIT):
        (decision,) = store.decide([Charge(some, "k")])
        assert not decision.degraded
        if not decision:
            return
    raise AssertionError("it never denies")


def _node(url: str, offset: str) -> dict[str, Any]:
    """Another process, by another clock."""
    root = Path(__file__).parents[3]
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "LD_PRELOAD": library(),
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", NODE, url], env=environment, cwd=root, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer
