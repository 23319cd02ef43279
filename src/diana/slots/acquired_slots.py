"""The slots of one request.

They are released once, however often that is asked for. Slots whose owner was dropped without a release (a server that does not close what
it was given) are released when the garbage collector finds them.
"""

from __future__ import annotations

from os import getpid
from types import TracebackType
from typing import Any

from diana.slots.slot import HeldSlot
from diana.slots.slot_renewer import keeper_of_process

NONE: list[Any] = []


class AcquiredSlots:
    """The places of one request: `with held:`, `async with held:`, or `release()` when it is done."""

    __slots__ = ("_keeper", "_places")

    def __init__(self, places: list[HeldSlot]) -> None:
        self._places = places
        self._keeper = keeper = keeper_of_process()
        for place in places:
            keeper.hold(place)

    def release(self) -> None:
        """Give them back; done twice, it is done once. Never waits for a store that is elsewhere."""
        places = self._places
        if places:
            self._places = NONE
            keeper = self._keeper
            is_own = keeper.pid == getpid()
            for place in places:
                # A forked child leaves its parent's slots alone, except in private memory: there it has a copy of the counters.
                if is_own or not place.account.store.shared:
                    keeper.release(place)

    def __enter__(self) -> AcquiredSlots:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.release()

    async def __aenter__(self) -> AcquiredSlots:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if self._places and self._keeper.pid == getpid():
            # Anything may be locked where the collector strikes; this queue is made for that.
            self._keeper.abandoned(self._places)
