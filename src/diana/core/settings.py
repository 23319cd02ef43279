"""How permits are leased: the setting `lease`."""

from __future__ import annotations

from typing import Any, NamedTuple

from diana.core.contracts import Algorithm
from diana.core.duration import SECOND_US

SHORTEST_US = 100_000
LONGEST_US = 60 * SECOND_US


class LeaseTerms(NamedTuple):
    start_percent: int = 10
    """Of a limit: what a node is given first, but at most its part among all nodes."""
    ttl_us: int = SECOND_US
    """For how long permits are held; what a node that died held counts as used after that."""


def why_not_leased(algorithm: Algorithm) -> str | None:
    """Why permits of this algorithm cannot be handed out in advance; None if they can."""
    reason: str | None = getattr(algorithm, "not_leased", None)
    if reason is not None:
        return reason
    if getattr(algorithm, "uncapped", None) is None:
        return "it does not say how (it has no `uncapped`)"
    if getattr(algorithm, "lua", None) is None:
        return "it has no kernel in Lua, where leases are counted"
    return None


def uncapped(algorithm: Algorithm, params: Any) -> Any:
    """The params under which what was admitted is counted, whatever the limit is by now."""
    return algorithm.uncapped(params)  # type: ignore[attr-defined]
