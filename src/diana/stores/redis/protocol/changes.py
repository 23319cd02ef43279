"""What compare and swap does to states: charge, refund. By the algorithms' own functions."""

from __future__ import annotations

from typing import Any

from diana.core.charge import Charges
from diana.core.contracts import State
from diana.core.meter import Meter
from diana.stores.redis.protocol.compare_and_swap import Change


def charge_all(charges: Charges, write: bool) -> Change:
    """All or nothing, by the algorithms' own functions."""

    def change(states: list[State | None], now: int) -> tuple[Any, list[State | None]]:
        outcomes, after = [], []
        for (meter, _, cost), state in zip(charges, states, strict=True):
            next_state, outcome = meter.decide(state, meter.params, cost, now)
            outcomes.append(outcome)
            after.append(next_state if cost and next_state is not state else None)
        if not all(outcome[0] for outcome in outcomes):
            for place, (meter, _, _) in enumerate(charges):
                if outcomes[place][0]:
                    outcomes[place] = meter.decide(states[place], meter.params, 0, now)[1]
                    after[place] = None
        return outcomes, after if write else [None] * len(after)

    return change


def refund_one(meter: Meter, cost: int, at: int) -> Change:
    def change(states: list[State | None], now: int) -> tuple[Any, list[State | None]]:
        (state,) = states
        return None, [
            None if state is None else meter.algorithm.refund(state, meter.params, cost, at, now)
        ]

    return change
