"""The race: everybody in turns, in short rounds, in one process.

Measuring one contestant after the other on a busy machine measures the machine: whoever ran while a neighbour was compiling
loses. So a round is a few milliseconds of each, and contestants are compared within a round, where the machine was the same for all.
The median over the rounds then forgets the rounds that were disturbed.

- The order is drawn anew for each round, so nobody always runs in the caches that the same other one left behind.
- The garbage collector stays on: who makes garbage pays for it.
- Threads that a contestant leaves behind are waited for, untimed, or the next one would pay for them.
- Every answer of the warm-up and the last one of every turn are checked, so nobody is fast by saying no.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple


def _nothing_to_wait_for() -> None:
    pass


class Contestant(NamedTuple):
    name: str
    decide: Callable[[Any], object]
    """Called with one subject after the other: a key, a request, whatever the race is about."""
    passed: Callable[[Any], bool] = bool
    """Reads the answer of `decide`."""
    settle: Callable[[], object] = _nothing_to_wait_for
    """Called after each turn, untimed: waits for what it left running in the background."""


class Times:
    """What each contestant took per decision, round by round. The first contestant is what the others are compared with."""

    def __init__(self, names: Sequence[str]) -> None:
        self.first = names[0]
        self._micros: dict[str, list[float]] = {name: [] for name in names}

    def add(self, name: str, micros: float) -> None:
        self._micros[name].append(micros)

    def median_us(self, name: str) -> float:
        return median(self._micros[name])

    def ratio(self, name: str, to: str | None = None) -> float:
        """How many times as long as another, compared round by round. Not quite the ratio of the medians, and much steadier."""
        pairs = zip(self._micros[name], self._micros[to or self.first], strict=True)
        return median(mine / theirs for mine, theirs in pairs)

    def fastest(self, names: Sequence[str]) -> str:
        return min(names, key=self.median_us)


def race(
    contestants: Sequence[Contestant], subjects: Sequence[Any], *, turn: int, rounds: int
) -> Times:
    """Everybody meets every subject once; then come the timed rounds, in turns of `turn` subjects."""
    for contestant in contestants:
        _warm_up(contestant, subjects)
    gc.collect()
    times = Times([contestant.name for contestant in contestants])
    order, draw = list(contestants), Random(1)
    for _, part in zip(range(rounds), cycle(_parts(subjects, turn)), strict=False):
        draw.shuffle(order)
        for contestant in order:
            times.add(contestant.name, _turn_us(contestant, part))
    return times


def _warm_up(contestant: Contestant, subjects: Sequence[Any]) -> None:
    for subject in subjects:
        _check(contestant, contestant.decide(subject))
    contestant.settle()


def _turn_us(contestant: Contestant, subjects: Sequence[Any]) -> float:
    decide = contestant.decide
    answer: object = None
    started = perf_counter()
    for subject in subjects:
        answer = decide(subject)
    seconds = perf_counter() - started
    _check(contestant, answer)
    contestant.settle()
    return seconds / len(subjects) * 1e6


def _check(contestant: Contestant, answer: object) -> None:
    if not contestant.passed(answer):
        raise AssertionError(f"{contestant.name} should have let everything pass")


def _parts(subjects: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Equal parts; a shorter rest is left out."""
    for start in range(0, len(subjects) - size + 1, size):
        yield subjects[start : start + size]
