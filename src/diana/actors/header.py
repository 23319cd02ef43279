"""`header NAME`: what the header says. Two lines that contradict each other say nothing."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, Surroundings
from diana.core.request import checked_token


def _identity(argument: str, surroundings: Surroundings) -> Identity:
    name = checked_token(argument, "header X-Tenant").lower()
    return lambda request: request.header(name)


header = Actor(
    _identity,
    argument="NAME",
    secret=True,
    any_case=True,
    same_everywhere=True,
    reads_path=False,
    kinds=frozenset(),
)
