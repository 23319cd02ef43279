"""Exchanges of several steps, written once: a generator yields what to do and is sent the answer.

The generator knows no threads, sockets or event loop. `drive` does what it says, `adrive` does the same with `await`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

Step = TypeVar("Step")
Result = TypeVar("Result")


def drive(steps: Generator[Step, Any, Result], perform: Callable[[Step], Any]) -> Result:
    advance: Callable[[Any], Step] = steps.send
    answer: Any = None
    while True:
        try:
            step = advance(answer)
        except StopIteration as done:
            result: Result = done.value
            return result
        try:
            answer, advance = perform(step), steps.send
        except BaseException as error:
            answer, advance = error, steps.throw


async def adrive(
    steps: Generator[Step, Any, Result], perform: Callable[[Step], Awaitable[Any]]
) -> Result:
    advance: Callable[[Any], Step] = steps.send
    answer: Any = None
    while True:
        try:
            step = advance(answer)
        except StopIteration as done:
            result: Result = done.value
            return result
        try:
            answer, advance = await perform(step), steps.send
        except BaseException as error:
            answer, advance = error, steps.throw
