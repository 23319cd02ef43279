"""Histories by seed and number: run one, and if it fails make it short and say how to run it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

from tests.fuzz.back_ends import BackEnds, Tally, back_ends
from tests.fuzz.findings import Difference, Finding, InvalidHistory
from tests.fuzz.guards import GuardHistory, run_guards
from tests.fuzz.limiters import LimiterHistory, run_limiters
from tests.fuzz.random_guards import random_guard_history
from tests.fuzz.random_limiters import random_limiter_history
from tests.fuzz.real_time import PlayedOtherwise, play
from tests.fuzz.shrink import as_code, shrink
from tests.servers.server import Server

INVENTORS: tuple[Callable[[Random], Any], ...] = (random_limiter_history, random_guard_history)
"""By the number of the history, in turn."""
SIDE_BY_SIDE = 60
"""Histories that pause together in real time."""


class Failure(NamedTuple):
    seed: int
    number: int
    finding: Finding
    history: Any

    def __str__(self) -> str:
        code = as_code(self.history).replace("\n", "\n    ")
        return (
            f"seed {self.seed}, history {self.number}, step {self.finding.step} of the shortened history:\n"
            f"{self.finding}\n\n"
            f'Run it again: make fuzz ARGS="--seed {self.seed} --history {self.number}", or the shortened one:\n\n'
            f"    from tests.fuzz.replay import *\n\n"
            f"    replay(\n    {code}\n    )\n"
        )


class RealTimeFailure(NamedTuple):
    """In real time a history need not fail again, so it is not made shorter."""

    seed: int
    batch: int
    difference: PlayedOtherwise

    def __str__(self) -> str:
        code = as_code(self.difference.history).replace("\n", "\n    ")
        return (
            f"seed {self.seed}, batch {self.batch} in real time: {self.difference}\n\n"
            f'Run it again: make fuzz ARGS="--seed {self.seed} --real-time {self.batch}". It was one of these histories:\n\n'
            f"    {code}\n"
        )


class Session:
    """On open back ends."""

    def __init__(self, opened: BackEnds, runner: asyncio.Runner) -> None:
        self.back_ends = opened
        self._runner = runner
        self.invalid = 0

    def run(self, seed: int, number: int) -> Failure | None:
        history = history_of(seed, number)
        try:
            self.perform(history)
        except InvalidHistory:
            self.invalid += 1
        except Finding as finding:
            return self._shortened(Failure(seed, number, finding, history))
        return None

    def run_in_real_time(self, seed: int, batch: int) -> RealTimeFailure | None:
        """Many histories, side by side."""
        numbers = range(batch * SIDE_BY_SIDE, (batch + 1) * SIDE_BY_SIDE)
        try:
            play([history_of(seed, number) for number in numbers], self.back_ends)
        except PlayedOtherwise as difference:
            return RealTimeFailure(seed, batch, difference)
        return None

    def perform(self, history: Any) -> None:
        """Raise a Finding, or InvalidHistory."""
        if isinstance(history, LimiterHistory):
            run_limiters(history, self.back_ends, self._runner)
        if isinstance(history, GuardHistory):
            run_guards(history, self.back_ends, self._runner)

    def _shortened(self, failure: Failure) -> Failure:
        kind = _kind_of(failure.finding)
        found = {repr(failure.history): failure.finding}

        def fails(candidate: Any) -> bool:
            try:
                self.perform(candidate)
            except Finding as finding:
                found[repr(candidate)] = finding
                return _kind_of(finding) == kind
            except Exception:  # it became too simple to be a history
                return False
            return False

        history = shrink(failure.history, fails)
        return failure._replace(history=history, finding=found[repr(history)])


def history_of(seed: int, number: int) -> Any:
    return INVENTORS[number % len(INVENTORS)](Random(f"{seed}/{number}"))


@contextmanager
def session(servers: Mapping[str, Server], tally: Tally | None = None) -> Iterator[Session]:
    """`tally`: where to count what is compared."""
    with (
        back_ends(servers, Tally() if tally is None else tally) as opened,
        asyncio.Runner() as runner,
    ):
        yield Session(opened, runner)


def _kind_of(finding: Finding) -> object:
    """While a history is made shorter, it must fail for the same reason, as far as that can be told."""
    if isinstance(finding, Difference):
        return frozenset(finding.found)
    return str(finding).partition(":")[0]
