"""Every worked example, through the pure function and through a Limiter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diana import Limiter
from diana.core.counter import meter_from_limit
from diana.core.limit import limit_from_spelling
from diana.runtime.entry_points import algorithm_from_spelling
from diana.testing import FakeClock

FOLDER = Path(__file__).parents[1] / "vectors"
FILES = sorted(path for path in FOLDER.glob("*.json") if path.stem != "pacer")
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['title']}")
    for path in FILES
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
]


def test_there_is_a_file_for_every_shipped_algorithm() -> None:
    assert [path.stem for path in FILES] == [
        "leaky_bucket",
        "sliding_log",
        "sliding_window",
        "token_bucket",
        "window",
    ]


@pytest.mark.parametrize("case", CASES)
def test_the_algorithm_gives_the_worked_numbers(case: dict[str, Any]) -> None:
    limit, algo, options = _parts(case)
    meter = meter_from_limit("vector", limit_from_spelling(limit), algo_of(algo), options)
    state = None
    for number, step in enumerate(case["steps"]):
        now, cost = step["at_ms"] * 1_000, step.get("cost", 1)
        state, outcome = meter.algorithm.decide(state, meter.params, cost, now)
        allowed, remaining, retry_us, reset_us, delay_us = outcome
        found = {
            "allowed": allowed,
            "remaining": remaining,
            "retry_after_ms": retry_us / 1_000,
            "reset_after_ms": reset_us / 1_000,
            "delay_ms": delay_us / 1_000,
        }
        _agrees(number, step, found)


@pytest.mark.parametrize("case", CASES)
def test_a_limiter_gives_the_worked_numbers(case: dict[str, Any]) -> None:
    limit, algo, options = _parts(case)
    clock = FakeClock()
    limiter = Limiter(limit, algo=algo, clock=clock, **options)
    for number, step in enumerate(case["steps"]):
        clock.set(step["at_ms"] * 1_000)
        decision = limiter.take("k", step.get("cost", 1))
        retry = decision.retry_after
        found = {
            "allowed": bool(decision),
            "remaining": decision.remaining,
            "retry_after_ms": None if retry is None else round(retry * 1_000, 3),
            "reset_after_ms": round(decision.reset_after * 1_000, 3),
            "delay_ms": round(decision.delay * 1_000, 3),
        }
        _agrees(number, step, found)


def _parts(case: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    options = dict(case["limit"])
    return f"{options.pop('rpu')}/{options.pop('unit')}", options.pop("algo"), options


algo_of = algorithm_from_spelling


def _agrees(number: int, step: dict[str, Any], found: dict[str, Any]) -> None:
    wanted = {name: value for name, value in step.items() if name not in ("at_ms", "cost")}
    assert wanted, "a step without a wanted number proves nothing"
    assert {name: found[name] for name in wanted} == wanted, f"step {number}: {step}"
