"""Invents histories of limiters: small numbers mostly, and moments around which something changes."""

from __future__ import annotations

from random import Random
from typing import Any

from diana.core.duration import micros_from_spelling
from tests.fuzz.limiters import (
    Advance,
    AdvanceToReset,
    AdvanceToRetry,
    LimiterHistory,
    Limits,
    Peek,
    Rate,
    Refund,
    Reset,
    Step,
    Take,
)
from tests.fuzz.stepped_clock import BEGIN_US

SECOND_US = 1_000_000
ALGORITHMS = ("TB", "TB", "TB", "LB", "LB", "LB", "W", "W", "SW", "SW", "SL", "SL", "C")
UNITS = ("1ms", "250ms", "second", "second", "7s", "minute", "minute", "hour", "day", "97d")
MOST_IN_LOG = 500


def random_limiter_history(chance: Random) -> LimiterHistory:
    limiters = _limiters(chance)
    steps: list[Step] = []
    paces = [_pace_and_unit(*limit) for limits in limiters for limit in limits.limits]
    keys = chance.choice((("a",), ("a", "b"), ("a", "long", "ключ 🔑")))
    for _ in range(chance.randint(2, chance.choice((8, 20, 40)))):
        steps += _steps(chance, limiters, paces, keys)
    begin_us = BEGIN_US + chance.choice((0, chance.randrange(2 * max(unit for _, unit in paces))))
    return LimiterHistory(tuple(limiters), tuple(steps), begin_us, chance.random() < 0.15)


def _limiters(chance: Random) -> list[Limits]:
    first = _limiter(chance, "one")
    kind = chance.random()
    if kind < 0.6:
        return [first]
    if kind < 0.75:
        return [first, _limiter(chance, "two")]
    edits = [_edited(chance, first) for _ in range(chance.randint(1, 2))]
    return [first, *edits]


def _limiter(chance: Random, name: str) -> Limits:
    algo = chance.choice(ALGORITHMS)
    if algo == "C":
        options: dict[str, Any] = {"hold": chance.choice(("250ms", "2s", "60s", "1h"))}
        if chance.random() < 0.3:
            options["retry"] = "1s"
        return Limits(name, (Rate(chance.choice((1, 2, 5, 30)), "at once"),), "TB", options)
    units = chance.sample(sorted(set(UNITS)), chance.choice((1, 1, 1, 2, 3)))
    if len(units) == 1:
        units = [chance.choice(UNITS)]
    limits = tuple(Rate(_rpu(chance, algo), unit) for unit in units)
    return Limits(name, limits, algo, _options(chance, algo))


def _rpu(chance: Random, algo: str) -> int:
    kind = chance.random()
    if kind < 0.01:
        return 0
    if kind < 0.7 or algo == "SL":
        return chance.randint(1, 12) if kind < 0.9 else chance.choice((97, MOST_IN_LOG))
    return chance.choice((97, 1_000, 999_983, 10**9, chance.randint(1, 5_000)))


def _options(chance: Random, algo: str) -> dict[str, Any]:
    if algo == "TB":
        return chance.choice(({}, {}, {"burst": chance.choice((1, 2, 7, 1_000))}))
    if algo == "LB":
        burst = chance.choice((0, 1, 5, 20))
        return chance.choice(
            (
                {},
                {"burst": burst},
                {"burst": burst},
                {"burst": burst, "nodelay": True},
                {"burst": burst, "delay": chance.randint(0, 3)},
                {"max_wait": chance.choice(("100ms", "2500ms", "1h"))},
            )
        )
    if algo == "SW":
        return chance.choice(({}, {"slices": chance.choice((1, 2, 3, 7, 60))}))
    if algo == "W":
        return {"align": "first"} if chance.random() < 0.3 else {}
    return {}


def _edited(chance: Random, limits: Limits) -> Limits:
    """The same counters under other numbers."""
    at_once = limits.limits[0][1] == "at once"
    algo = "C" if at_once else limits.algo
    rpus = tuple(
        Rate(chance.choice((1, 2, 5, 30)) if at_once else _rpu(chance, algo), unit)
        for _, unit in limits.limits
    )
    options = limits.options
    if algo in ("TB", "LB", "W"):
        options = _options(chance, algo)
    elif algo == "C":
        options = {**options, "hold": chance.choice(("250ms", "2s", "60s", "1h"))}
    return limits._replace(limits=rpus, options=options)


def _pace_and_unit(rpu: int, unit: str) -> tuple[int, int]:
    unit_us = 60 * SECOND_US if unit == "at once" else micros_from_spelling(unit)
    return max(1, unit_us // max(1, rpu)), unit_us


def _steps(
    chance: Random, limiters: list[Limits], paces: list[tuple[int, int]], keys: tuple[str, ...]
) -> list[Step]:
    number, key = chance.randrange(len(limiters)), chance.choice(keys)
    kind = chance.random()
    if kind < 0.52:
        return [Take(number, key, _cost(chance, limiters[number]))]
    if kind < 0.58:
        return [Take(number, key, 1)] * chance.randint(2, 12)
    if kind < 0.64:
        return [Peek(number, key)]
    if kind < 0.75:
        return [Refund(chance.choice((0, 0, 0, 1, 2, chance.randint(0, 9))))]
    if kind < 0.77:
        return [Reset(number, key)]
    if kind < 0.81:
        return [AdvanceToRetry(chance.choice((-1, 0, 0, 1)))]
    if kind < 0.83:
        return [AdvanceToReset(chance.choice((-1, 0, 1, 34 * SECOND_US)))]
    return [Advance(_gap(chance, *chance.choice(paces)))]


def _cost(chance: Random, limits: Limits) -> int:
    kind = chance.random()
    rpu = limits.limits[0][0]
    if kind < 0.65:
        return 1
    if kind < 0.93:
        return chance.choice((0, 2, 3, 4, max(1, rpu // 2), rpu, chance.randint(1, rpu + 1)))
    return chance.choice((rpu + 1, 2 * rpu + 1, 1_001, 2**53 - 1))


def _gap(chance: Random, pace: int, unit: int) -> int:
    kind = chance.random()
    if kind < 0.15:
        return -chance.choice((1, chance.randint(1, SECOND_US), SECOND_US, SECOND_US + 1))
    if kind < 0.22:
        return -chance.choice((2 * SECOND_US, 10 * SECOND_US, unit, 3 * unit, 40 * SECOND_US))
    return chance.choice(
        (
            1,
            chance.randint(1, 3),
            pace - 1,
            pace,
            pace + 1,
            chance.randint(0, 2 * pace),
            chance.randint(0, 2 * pace),
            unit - 1,
            unit,
            unit + 1,
            unit // 10,
            chance.randint(0, 2 * unit),
            chance.randint(0, 2 * unit),
            35 * SECOND_US,
        )
    )
