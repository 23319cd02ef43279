"""One slot that a request holds, and what the slots in one store have in common."""

from __future__ import annotations

from time import monotonic
from typing import Any

from diana.core.contracts import Clock, GiveBack, Store
from diana.core.counter import CounterSpec
from diana.slots.wait_queue import WaitQueues
from diana.stores.adapters import renewed


class SlotStore:
    """What the places in one store of one guard or limiter have in common."""

    __slots__ = ("_bound", "clock", "expired", "is_elsewhere", "lines", "store")

    def __init__(
        self, store: Store, clock: Clock | None, lines: WaitQueues, meter: CounterSpec | None = None
    ) -> None:
        """`meter`: all of them are of this one."""
        self.store = store
        self.clock = clock
        self.lines = lines
        """Who waits for a place is told when one is free again."""
        self.is_elsewhere = hasattr(store, "asynchronous")
        bind = None if meter is None else getattr(store, "bind_refund", None)
        self._bound: GiveBack | None = None if bind is None else bind(meter, clock)
        self.expired = 0
        """Places that ran off while their request still ran."""

    def give_back(self, place: HeldSlot) -> None:
        """In a store that makes nobody wait."""
        if self._bound is not None:
            _, key, cost = place.charge
            self._bound(key, cost, place.at)
        else:
            clock = self.clock
            self.store.refund((place.charge,), place.at, None if clock is None else clock())
        if self.lines.are_used:
            self.lines.wake(place_name(place.charge))


class HeldSlot:
    """One that is held, in one counter of a store."""

    __slots__ = (
        "account", "at", "charge", "degraded", "has_run_off", "hold", "is_released", "is_renewing", "since",
    )  # fmt: skip

    def __init__(
        self, account: SlotStore, charge: tuple[CounterSpec, str, int], at: int, degraded: bool
    ) -> None:
        self.account = account
        self.charge = charge
        self.at = at
        self.degraded = degraded
        self.hold = charge[0].limit.unit_us / 1_000_000
        """For how long, from `since`, the store keeps it."""
        self.since = monotonic()
        self.is_released = False
        self.is_renewing = False
        self.has_run_off = False
        """It is another's by now."""

    def renew(self) -> None:
        # Marked first, then looked: whoever releases meanwhile marks first and looks, too, so one of the two sees the other.
        self.is_renewing = True
        try:
            if not self.is_released:
                began = monotonic()
                moment = _renewed(self)
                if moment is not None:
                    # By when it was surely renewed: it may have run off before that.
                    if moment == 0 or self.is_overdue():
                        self.count_as_expired()
                    self.has_run_off = moment == 0
                    self.since = began
                    self.hold = self.charge[0].limit.unit_us / 1_000_000
                    self.at = moment or self.at
        finally:
            self.is_renewing = False

    def is_due(self) -> bool:
        """It is to be renewed. After an edit, at the pace of the new hold."""
        return monotonic() - self.since >= self.charge[0].limit.unit_us / 3_000_000

    def is_overdue(self) -> bool:
        return monotonic() - self.since >= self.hold

    def count_as_expired(self) -> None:
        if not self.has_run_off:  # it is counted already
            self.account.expired += 1


def place_name(charge: tuple[CounterSpec, str, int]) -> str:
    """Of the counter that it is a place of."""
    return f"{charge[0].id}|{charge[1]}"


def _renewed(place: HeldSlot) -> int | None:
    """Its moment from now on; 0 if it is lost, None if the store did not say."""
    store: Any = place.account.store
    if place.degraded:
        found: int | None = store.renew(place.charge, place.at, degraded=True)
        return found
    return renewed(store, place.charge, place.at)
