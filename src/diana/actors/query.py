"""`query NAME`: the value of a query parameter. Two that contradict each other say nothing.

`query NAME as int`: as a number, however it is spelled.
"""

from __future__ import annotations

from diana.actors import conversion_from_argument
from diana.core.actor import Actor, Identity, RuleContext


def _identity(argument: str, surroundings: RuleContext) -> Identity:
    name, convert = conversion_from_argument(argument)
    return lambda request: convert(request.query_value(name))


query = Actor(
    _identity,
    argument="NAME",
    same_everywhere=True,
    reads_path=False,
    kinds=frozenset(),
    chosen_by_clients=True,
)
