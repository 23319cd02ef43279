"""What to look at again, and when: amortised O(1), no scan, no timer.

Moments are coarse (about four seconds). A heap orders the slots that hold anything, each slot a queue; putting a key into a slot that is
there already, nearly always the case, is one append.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

Owner = TypeVar("Owner")
Key = TypeVar("Key")

SLOT_BITS = 22
"""A slot is 2**22 µs long."""
NO_TIME = 1 << 62


class Slot(NamedTuple):
    number: int
    owner: int


class Agenda(Generic[Owner, Key]):
    """Keys of several owners, earliest slot first. An owner is known by its place in `owners`."""

    def __init__(self, owners: list[Owner]) -> None:
        self._owners = owners
        self._queues: dict[Slot, deque[Key]] = {}
        self._order: list[Slot] = []
        self.due = NO_TIME
        """When the earliest slot is past."""

    def __bool__(self) -> bool:
        return bool(self._order)

    def put(self, when_us: int, owner: int, key: Key) -> None:
        slot = Slot(when_us >> SLOT_BITS, owner)
        queue = self._queues.get(slot)
        if queue is None:
            queue = self._queues[slot] = deque()
            heappush(self._order, slot)
            self.due = (self._order[0].number + 1) << SLOT_BITS
        queue.append(key)

    def pop(self) -> tuple[Slot, Owner, Key]:
        """The key that has waited longest in the earliest slot. Slots are dropped as soon as they are empty."""
        slot = self._order[0]
        queue = self._queues[slot]
        key = queue.popleft()
        if not queue:
            del self._queues[heappop(self._order)]
            self.due = (self._order[0].number + 1) << SLOT_BITS if self._order else NO_TIME
        return slot, self._owners[slot.owner], key
