"""`device`: what `identity: device:` says."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, Surroundings


def _identity(argument: str, surroundings: Surroundings) -> Identity:
    return surroundings.device


device = Actor(
    _identity, secret=True, same_everywhere=True, reads_path=False, kinds=frozenset({"device"})
)
