"""A store in real time, beside a model that is asked the same at the same moments.

Every decision says at which moment it was made, so the model can be asked for that moment, and must decide the same.
"""

from __future__ import annotations

from typing import Any

from diana.core.charge import Charges
from diana.core.contracts import Clock, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.runtime.clock import wall_us
from tests.fuzz.findings import Difference
from tests.fuzz.forgetting import Forgetting
from tests.fuzz.model import Model

BUCKETS = ("TB", "LB")


class CheckedStore:
    """Raises a Difference if the store decides otherwise than its model."""

    shared = True

    def __init__(self, name: str, store: Any) -> None:
        self._name = name
        self._store = store
        self._model = Model()
        self._forgetting = Forgetting(self._model)
        self.decisions = 0

    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        asked = self._store.bind(meter, clock)

        def take(key: str, cost: int = 1) -> Decision:
            charges = [(meter, key, cost)]
            self._reset_what_is_not_comparable(charges)
            decision: Decision = asked(key, cost)
            self._replay(charges, [decision])
            return decision

        return take

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        self._reset_what_is_not_comparable(charges)
        decisions: list[Decision] = self._store.decide(charges, now)
        self._replay(charges, decisions)
        return decisions

    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        self._reset_what_is_not_comparable(charges)
        decisions: list[Decision] = self._store.peek(charges, now)
        for charge, said in zip(charges, decisions, strict=True):
            charged = said if all(decisions) or not said else said._replace(cost=0)
            self._compare(self._looked(charge, charged), said)
        return decisions

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        """At a moment that the store does not tell, between two looks. The refund of a bucket depends on it to the microsecond."""
        for charge in charges:
            meter, key, _ = charge
            (before,) = self.peek([(meter, key, 0)])
            self._store.refund([charge], at, now)
            if meter.algorithm.code in BUCKETS:
                self.reset(meter, key)
                continue
            (said,) = self._store.peek([(meter, key, 0)])
            found = self._model.states.get((meter.id, key))
            for moment in (before.at, said.at):
                if found is not None:
                    self._model.states[meter.id, key] = found
                self._model.refund([charge], at, moment)
                expected = self._looked((meter, key, 0), said)
                if expected == said:
                    break
            self._compare(expected, said)

    def reset(self, meter: CounterSpec, key: str) -> None:
        self._store.reset(meter, key)
        self._model.reset(meter, key)

    def check_meter(self, meter: CounterSpec) -> None:
        check = getattr(self._store, "check_meter", None)
        if check is not None:
            check(meter)

    def close(self) -> None:
        """The store is open for others."""

    def _replay(self, charges: Charges, decisions: list[Decision]) -> None:
        """Each at its own moment: those that are counted in C and in Python together are not of one."""
        allowed = all(decisions)
        for charge, said in zip(charges, decisions, strict=True):
            if said and not allowed:
                self._compare(self._looked(charge, said._replace(cost=0)), said)
                continue
            (expected,) = self._model.decide([charge], said.at)
            self._compare(expected, said)
            if said.cost:
                meter = charge[0]
                longest = meter if meter.family is None else meter.family.longest or meter
                self._forgetting.note([longest], said.key, said.at)

    def _looked(self, charge: tuple[CounterSpec, str, int], said: Decision) -> Decision:
        """What the model says of the cost that was charged, as if it were all of it."""
        meter, key, cost = charge
        (decision,) = self._model.peek([(meter, key, said.cost)], said.at)
        return decision._replace(cost=cost)

    def _compare(self, expected: Decision, said: Decision) -> None:
        self.decisions += 1
        if expected != said:
            raise Difference(expected, {self._name: said})

    def _reset_what_is_not_comparable(self, charges: Charges) -> None:
        for meter, key in list(self._forgetting.not_comparable(charges, wall_us())):
            self.reset(meter, key)
