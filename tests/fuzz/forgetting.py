"""Which counters a store may have forgotten, or may still know: they cannot be compared, so they are reset everywhere.

Each limit that asks for a key says until when its state matters to that limit, and a store forgets the key some time after the latest of
these moments. Should a slower limit then ask for it, to which the same state would still matter, it depends on the store, and on the time
since, what it finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from diana.core.contracts import State
from diana.core.counter import CounterSpec
from tests.fuzz.model import Model

Counter = tuple[str, str]


class Forgetting:
    def __init__(self, *models: Any) -> None:
        self._models: tuple[Model, ...] = models
        self._until: dict[Counter, int] = {}

    def note(self, meters: Iterable[CounterSpec], key: str, now: int) -> None:
        """These limits have asked for the key, or are thought of when one of them does."""
        for meter in meters:
            if meter.denies_all:
                continue  # it reads and writes no key
            counter = (meter.id, key)
            until = now + _reset_us(meter, self._state(counter), now)
            self._until[counter] = max(until, self._until.get(counter, 0))

    def not_comparable(
        self, charges: Iterable[tuple[CounterSpec, str, int]], now: int
    ) -> Iterator[tuple[CounterSpec, str]]:
        for meter, key, _ in charges:
            counter = (meter.id, key)
            if meter.denies_all:
                continue
            reset_us = _reset_us(meter, self._state(counter), now)
            if reset_us == 0:
                self._until.pop(counter, None)  # to this limit it is new: it may begin it anew
            elif now >= self._until.get(counter, 0):
                yield meter, key

    def _state(self, counter: Counter) -> State | None:
        states = (model.states.get(counter) for model in self._models)
        return next((state for state in states if state is not None), None)


def _reset_us(meter: CounterSpec, state: State | None, now: int) -> int:
    return meter.decide(state, meter.params, 0, now)[1][3]
