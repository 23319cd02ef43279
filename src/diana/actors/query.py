"""`query NAME`: the value of a query parameter. Two that contradict each other say nothing."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, Surroundings


def _identity(argument: str, surroundings: Surroundings) -> Identity:
    return lambda request: request.query_value(argument)


query = Actor(_identity, argument="NAME", same_everywhere=True, reads_path=False, kinds=frozenset())
