"""Every registered algorithm keeps the laws; and the laws catch those that don't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from diana.algorithms.token_bucket import TokenBucket
from diana.core.contracts import Numbers
from diana.runtime.entry_points import algorithms
from diana.testing import algorithm_laws

Answer = tuple[Numbers | None, tuple[bool, int, int, int, int]]


@pytest.mark.parametrize("code", algorithms())
def test_laws_hold(code: str) -> None:
    algorithm_laws(algorithms()[code])


class Broken(TokenBucket):
    """A token bucket with one mistake."""

    def __init__(self, mistake: Callable[[Numbers | None, Answer], Answer]) -> None:
        self._mistake = mistake

    def decide(self, state: Numbers | None, params: Any, cost: int, now: int) -> Answer:
        return self._mistake(state, TokenBucket.decide(state, params, cost, now))


def _with(answer: Answer, **changed: Any) -> Answer:
    names = ("allowed", "remaining", "retry", "reset", "delay")
    outcome = dict(zip(names, answer[1], strict=True)) | changed
    return answer[0], tuple(outcome.values())


def float_numbers(state: Numbers | None, answer: Answer) -> Answer:
    return _with(answer, remaining=float(answer[1][1]))


def charges_denials(state: Numbers | None, answer: Answer) -> Answer:
    if answer[1][0] or state is None:
        return answer
    return (state[0], state[1], state[2]), answer[1]


def retries_early(state: Numbers | None, answer: Answer) -> Answer:
    return answer if answer[1][2] <= 1 else _with(answer, retry=answer[1][2] - 1)


def retries_late(state: Numbers | None, answer: Answer) -> Answer:
    return answer if answer[1][2] <= 0 else _with(answer, retry=answer[1][2] + 1)


def gives_up(state: Numbers | None, answer: Answer) -> Answer:
    return answer if answer[1][0] else _with(answer, retry=-1)


def forgets_early(state: Numbers | None, answer: Answer) -> Answer:
    return _with(answer, reset=max(0, answer[1][3] - 1))


def admits_everything(state: Numbers | None, answer: Answer) -> Answer:
    return _with(answer, allowed=True, retry=0)


def loses_a_drop(state: Numbers | None, answer: Answer) -> Answer:
    after = answer[0]
    if after is None or not answer[1][0]:
        return answer
    return (max(0, after[0] - 1), after[1], after[2]), answer[1]


@pytest.mark.parametrize(
    "mistake",
    [
        float_numbers,
        charges_denials,
        retries_early,
        retries_late,
        gives_up,
        forgets_early,
        admits_everything,
        loses_a_drop,
    ],
)
def test_the_laws_catch(mistake: Callable[[Numbers | None, Answer], Answer]) -> None:
    with pytest.raises(AssertionError):
        algorithm_laws(Broken(mistake), examples=300)


def test_the_laws_catch_a_refund_that_gives_too_much() -> None:
    class Generous(TokenBucket):
        def refund(self, state: Numbers, params: Any, cost: int, at: int, now: int) -> Numbers:
            return TokenBucket.refund(state, params, cost + 1, at, now)

    with pytest.raises(AssertionError):
        algorithm_laws(Generous(), examples=300)


def test_the_laws_catch_a_promise_that_is_broken() -> None:
    class Boastful(TokenBucket):
        def promise(self, params: Any, interval_us: int) -> int:
            return int(params.limit)

    with pytest.raises(AssertionError):
        algorithm_laws(Boastful(), examples=300)
