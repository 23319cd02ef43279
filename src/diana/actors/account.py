"""`account`, also written `actor`: what `identity: account:` says."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, Surroundings


def _identity(argument: str, surroundings: Surroundings) -> Identity:
    return surroundings.account


account = Actor(
    _identity,
    secret=True,
    also_written=("actor",),
    same_everywhere=True,
    reads_path=False,
    kinds=frozenset({"account"}),
)
