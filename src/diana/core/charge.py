"""Charges: how much of which counter. Several are decided together, all or nothing (`decide_all_or_nothing`).

Every store that holds states calls `decide_all_or_nothing` between reading and writing. The script inside a Redis server does the same in
Lua, and is tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from diana.core.contracts import State
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.errors import CostError
from diana.core.limit import uses_slots

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


_new = tuple.__new__


def decide_all_or_nothing(
    charges: Charges, states: Sequence[State | None], now: int
) -> tuple[list[Decision], list[State | None]]:
    """The decisions, and for each charge the state to be written (None: leave what is there).

    If all pass, all are charged. If one denies, none is, and a passing one beside it shows what it has without the charge. Written
    are then only denied states that were stamped anew because the clock was set back. A cost of 0 writes nothing.
    """
    decisions: list[Decision] = []
    after: list[State | None] = []
    allowed = True
    found = iter(states)
    for meter, key, cost in charges:
        if cost is not ONE:
            checked_cost(cost)
        state = next(found)
        params = meter.params
        next_state, outcome = meter.decide(state, params, cost, now)
        if not outcome[0]:
            allowed = False
        decisions.append(_new(Decision, (outcome, params.limit, key, cost, now, False)))
        after.append(next_state if cost and next_state is not state else None)
    if not allowed:
        for place, (meter, _, _) in enumerate(charges):
            decision = decisions[place]
            if decision:
                outcome = meter.decide(states[place], meter.params, 0, now)[1]
                decisions[place] = decision._replace(outcome=outcome)
                after[place] = None
    return decisions, after
