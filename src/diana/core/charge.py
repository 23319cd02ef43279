"""What is asked of a store: this much, to this key, under this limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from diana.core.decision import Decision
from diana.core.errors import CostError
from diana.core.limit import uses_slots
from diana.core.meter import CounterSpec

ONE = 1
"""`cost is ONE` tells the ordinary cost from True and 1.0 in one step."""

WHOLE = 2**53
"""Every number stays below this, so that Lua's and JavaScript's doubles hold it exactly."""


class Charge(NamedTuple):
    meter: CounterSpec
    key: str
    cost: int = 1


Charges = Sequence[tuple[CounterSpec, str, int]]
"""What a store takes: charges, or plain tuples of the same, which cost a third to make."""


def charged_at(meter: CounterSpec, decision: Decision) -> int:
    """The moment under which a charge that was admitted is refunded: that of what counts it (an entry, a window), or that of asking."""
    moment_of = getattr(meter.algorithm, "moment_of", None)
    if moment_of is None or (decision.degraded and not uses_slots(meter.algorithm)):
        return decision.at  # a degraded decision is of a share, whose unit may be another
    moment: int = moment_of(meter.params, decision.outcome, decision.at)
    return moment


def checked_cost(cost: int) -> int:
    if cost.__class__ is not int or not 0 <= cost < WHOLE:
        raise CostError(cost)
    return cost
