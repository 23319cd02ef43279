"""What happens when: a queue of events in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

BEGIN_US = 1_700_000_000_000_000
"""By the store's clock."""


class World:
    def __init__(self, seed: int | str) -> None:
        self.chance = Random(seed)
        self.now = 0
        """In µs."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0

    def after(self, delay_us: int, event: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (self.now + max(0, delay_us), self._order, event))

    def run(self, until_us: int) -> None:
        while self._events and self._events[0][0] <= until_us:
            self.now, _, event = heappop(self._events)
            event()
        self.now = until_us


class Network:
    """Between every node and the store."""

    def __init__(self, world: World, latency_us: tuple[int, int], loss: float) -> None:
        self._world = world
        self._latency_us = latency_us
        self._loss = loss
        self.is_cut = False

    def carry(self, deliver: Callable[[], None]) -> None:
        """There, some time later; or not."""
        chance = self._world.chance
        if self.is_cut or chance.random() < self._loss:
            return
        self._world.after(chance.randint(*self._latency_us), deliver)
