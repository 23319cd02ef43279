"""What is there for threads is there for coroutines: the same methods, with the same signatures and words."""

from __future__ import annotations

from inspect import Parameter, iscoroutinefunction, signature
from typing import Any

import pytest

from diana import AsyncGuard, AsyncLimiter, Guard, Limiter

TWINS = [(Limiter, AsyncLimiter), (Guard, AsyncGuard)]


WAIT_FOR_NOTHING = (
    "held",
    "slot",
    "beside",
    "from_file",
    "keep_slots",
    "require",
    "in_flight",
    "override",
    "remove_override",
)
"""What `require` and `slot` give is waited for, by `async with`; what is held is given back without waiting."""


def methods(kind: type) -> dict[str, Any]:
    return {name: thing for name in dir(kind) if not name.startswith("_") and callable(thing := getattr(kind, name))}  # fmt: skip


def parameters(method: Any) -> list[Parameter]:
    return list(signature(method).parameters.values())


@pytest.mark.parametrize(("threads", "tasks"), TWINS)
def test_twins_have_the_same_public_names(threads: type, tasks: type) -> None:
    public = {name for name in dir(threads) if not name.startswith("_")}
    assert public == {name for name in dir(tasks) if not name.startswith("_")}


@pytest.mark.parametrize(("threads", "tasks"), TWINS)
def test_twins_take_and_give_the_same(threads: type, tasks: type) -> None:
    assert parameters(threads) == parameters(tasks)
    for name, method in methods(threads).items():
        twin = getattr(tasks, name)
        assert parameters(method) == parameters(twin), name
        if name not in WAIT_FOR_NOTHING:
            assert signature(method) == signature(twin), name
            assert iscoroutinefunction(twin), name
            assert not iscoroutinefunction(method), name


@pytest.mark.parametrize(("threads", "tasks"), TWINS)
def test_twins_are_described_in_the_same_words(threads: type, tasks: type) -> None:
    for name, method in methods(threads).items():
        assert method.__doc__ == getattr(tasks, name).__doc__, name
        assert method.__doc__, name
