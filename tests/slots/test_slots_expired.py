"""A place that has run off while its request still ran is counted, whoever finds out."""

from __future__ import annotations

from diana.core.counter import meter_from_limit
from diana.core.limit import checked_places
from diana.runtime.entry_points import algorithms
from diana.slots.slot import HeldSlot, SlotStore
from diana.slots.slot_renewer import SlotRenewer
from diana.slots.wait_queue import WaitQueues
from diana.stores.memory import MemoryStore
from tests.servers.waiting import until


def test_one_that_ran_off_before_its_taker_went_on_is_counted_once() -> None:
    """The thread stood still between the store's answer and all else: by its own clock the place is new."""
    store = MemoryStore()
    meter = meter_from_limit("one", checked_places(1, 100_000), algorithms()["C"], {})
    account = SlotStore(store, None, WaitQueues())
    charge = meter, "k", 1
    (taken,) = store.decide([charge])
    until(lambda: store.decide([charge])[0], "it has run off, and is another's")
    place = HeldSlot(account, charge, taken.at, False)
    for _ in range(3):
        place.renew()
    assert account.expired == 1
    SlotRenewer().release(place)
    assert account.expired == 1
