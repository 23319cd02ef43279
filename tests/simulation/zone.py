"""A machine's zone in virtual time: what its processes count in together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from diana.core.contracts import Clock, Numbers, StateSwap
from diana.core.counter import CounterSpec
from diana.stores.memory import MemoryStore
from tests.simulation.world import World

FASTER = 0.1
"""Of all changes: another process came first, and it has to be done again."""

T = TypeVar("T")


class SimulatedZone(MemoryStore):
    now_us: Clock

    def __init__(self, node: str, world: World) -> None:
        super().__init__()
        self.node = node
        self._world = world
        self._numbers: dict[str, Numbers] = {}

    def check_meter(self, meter: CounterSpec) -> None:
        """Everything fits."""

    def read(self, _: CounterSpec, keys: Sequence[str]) -> list[Numbers | None]:
        return [self._numbers.get(key) for key in keys]

    def swap(self, _: CounterSpec, swaps: Sequence[StateSwap], __: int) -> bool:
        if any(self._numbers.get(key) != before for key, before, _ in swaps) or self._is_late():
            return False
        self._numbers |= {key: after for key, _, after in swaps}
        return True

    def change(
        self, _: CounterSpec, key: str, act: Callable[[Numbers | None], tuple[Numbers | None, T]]
    ) -> T:
        while self._is_late():
            act(self._numbers.get(key))
        after, result = act(self._numbers.get(key))
        if after is not None:
            self._numbers[key] = after
        return result

    def _is_late(self) -> bool:
        return self._world.chance.random() < FASTER

    def forget(self) -> None:
        """It was full, or somebody emptied it."""
        self._numbers.clear()
