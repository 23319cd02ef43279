"""`cookie NAME`: the value of a cookie. Two that contradict each other say nothing."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, RuleContext
from diana.core.request import checked_token


def _identity(argument: str, surroundings: RuleContext) -> Identity:
    name = checked_token(argument, "cookie session")
    return lambda request: request.cookie(name)


cookie = Actor(
    _identity,
    argument="NAME",
    secret=True,
    same_everywhere=True,
    reads_path=False,
    kinds=frozenset(),
    chosen_by_clients=True,
)
