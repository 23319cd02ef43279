"""The algorithms alone, in a dictionary of states: what every store must agree with. It never forgets a key."""

from __future__ import annotations

from diana.core.charge import Charges, decide_all_or_nothing
from diana.core.contracts import Clock, State, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.runtime.clock import wall_us


class Model:
    shared = False

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], State] = {}

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        def take(key: str, cost: int = 1) -> Decision:
            return self.decide([(meter, key, cost)], clock and clock())[0]

        return take

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        decisions, after = self._weigh(charges, now)
        for (meter, key, _), state in zip(charges, after, strict=True):
            if state is not None:
                self.states[meter.id, key] = state
        return decisions

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        return self._weigh(charges, now)[0]

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        now = wall_us() if now is None else now
        for meter, key, cost in charges:
            state = self.states.get((meter.id, key))
            if state is not None:
                refunded = meter.algorithm.refund(state, meter.params, cost, at, now)
                self.states[meter.id, key] = refunded

    def reset(self, meter: CounterSpec, key: str) -> None:
        self.states.pop((meter.id, key), None)

    def clear(self) -> None:
        self.states.clear()

    def close(self) -> None:
        """Nothing is held but memory."""

    def _weigh(
        self, charges: Charges, now: int | None
    ) -> tuple[list[Decision], list[State | None]]:
        states = [self.states.get((meter.id, key)) for meter, key, _ in charges]
        return decide_all_or_nothing(charges, states, wall_us() if now is None else now)
