"""`account`, also written `actor`: what `identity: account:` says."""

from __future__ import annotations

from diana.core.actor import Actor, Identity, RuleContext


def _account(argument: str, surroundings: RuleContext) -> Identity:
    return surroundings.account


account = Actor(
    _account,
    secret=True,
    also_written=("actor",),
    same_everywhere=True,
    reads_path=False,
    kinds=frozenset({"account"}),
)
