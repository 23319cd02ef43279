"""`path`: the canonical path; all its spellings are one."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, RuleContext
from diana.core.path_readings import path_of_segments, segments_of_path


def _identity(argument: str, surroundings: RuleContext) -> Identity:
    return lambda request: path_of_segments(request.segments)


def _canonical(written: str) -> str | None:
    return path_of_segments(segments_of_path(written)) if written.startswith("/") else None


path = Actor(
    _identity,
    same_everywhere=True,
    kinds=frozenset(),
    canonical=_canonical,
    chosen_by_clients=True,
)
