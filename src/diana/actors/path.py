"""`path`: the canonical path; all its spellings are one."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, Surroundings
from diana.core.path import path_of_segments


def _identity(argument: str, surroundings: Surroundings) -> Identity:
    return lambda request: path_of_segments(request.segments)


path = Actor(_identity, same_everywhere=True, kinds=frozenset(), chosen_by_clients=True)
