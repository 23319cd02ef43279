"""`account`, also written `actor`, and `device`: the identities that the setting `identity` finds."""

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


def _device(argument: str, surroundings: RuleContext) -> Identity:
    return surroundings.device


device = Actor(
    _device, secret=True, same_everywhere=True, reads_path=False, kinds=frozenset({"device"})
)
