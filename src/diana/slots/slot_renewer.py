"""The renewal and the release of the slots that this process holds.

One thread of the process renews all of them, those that are held for longer than a third of their `hold`; a request that is quick costs it
nothing. A place in this process is given back at once. One in a store elsewhere is given back in the background, many side by side, by the
event loop or by that thread; nobody waits for it. What cannot be given back, because the store is lost, is tried again until it has run
off by itself.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import sys
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from math import inf
from os import getpid
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from diana.core.contracts import Clock
from diana.core.counter import CounterSpec
from diana.slots.slot import HeldSlot, SlotStore, place_name

log = logging.getLogger("diana")

RETRY_SECONDS = 0.25
MOST_RETRIED = 10_000
"""Places that could not be given back and are to be tried again; of more, the rest runs off."""
CLOSE_SECONDS = 2.0
SHORTEST_TICK = 0.01


class SlotRenewer:
    """Of one process."""

    def __init__(self) -> None:
        self.pid = getpid()
        self._held: dict[HeldSlot, None] = {}
        self._queue: SimpleQueue[list[HeldSlot] | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._is_parked = False
        """It waits without end: places are seldom. Else it looks from time to time, and no request has to wake it."""
        self._is_used = False
        self._shortest = inf
        """Of all that were ever held here; so often it is looked which are to be renewed."""
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncioReleaseQueue] = (
            WeakKeyDictionary()
        )

    def hold(self, place: HeldSlot) -> None:
        if place.account.clock is not None:
            return  # on a clock of its own, nobody here knows when it is time
        self._held[place] = None
        self._is_used = True
        if place.hold < self._shortest:
            self._shortest = place.hold
            self._queue.put([])
        if self._thread is None:
            self._start()
        elif self._is_parked:
            self._queue.put([])

    def release(self, place: HeldSlot) -> None:
        place.is_released = True
        account = place.account
        if account.clock is None:
            self._held.pop(place, None)
            if place.is_overdue():
                place.count_as_expired()
        if account.is_elsewhere:
            self._release_elsewhere(place)
        elif not place.is_renewing:
            account.give_back(place)

    def use_edited(self, accounts: Container[SlotStore], meters: Mapping[str, CounterSpec]) -> None:
        """The rules were edited: slots that are held are renewed under these meters from now on."""
        for place in list(self._held):
            _, key, cost = place.charge
            meter = meters.get(place.charge[0].id)
            if meter is not None and place.account in accounts:
                place.charge = (meter, key, cost)
                self._shortest = min(self._shortest, meter.limit.unit_us / 1_000_000)
        self._queue.put([])

    def abandoned(self, places: list[HeldSlot]) -> None:
        self._queue.put(places)

    def flush(self) -> None:
        """Wait until what was given back so far is given back, for at most two seconds."""
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done)
            done.wait(CLOSE_SECONDS)

    async def aflush(self) -> None:
        releases = self._loops.get(asyncio.get_running_loop())
        if releases is not None:
            await releases.flush()

    def _release_elsewhere(self, place: HeldSlot) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            if self._thread is None:
                self._start()
            self._queue.put([place])
            return
        releases = self._loops.get(loop)
        if releases is None:
            releases = self._loops[loop] = AsyncioReleaseQueue(loop, self._queue.put)
        releases.put(place)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                # By its name in the module: gevent may have patched it after this was imported.
                self._thread = threading.Thread(target=self._run, name="diana-places", daemon=True)
                self._thread.start()
                _flush_at_exit()

    def _run(self) -> None:
        retried: list[HeldSlot] = []
        due: float | None = None
        while True:
            if self._held or retried or self._is_used:
                soon = monotonic() + (RETRY_SECONDS if retried else self._shortest / 3)
                due = soon if due is None else min(due, soon)
            else:
                due, self._is_parked = None, True
                if self._is_used:
                    self._is_parked = False
                    continue
            found = self._found(due)
            self._is_parked = False
            try:
                retried += self._give_back(found)
                if due is not None and monotonic() >= due:
                    due, self._is_used = None, False
                    retried = self._give_back([still_held(retried)])
                    self._renew()
            except Exception:
                log.exception("renewing places failed; it is tried again")

    def _found(self, due: float | None) -> list[list[HeldSlot] | threading.Event]:
        """What is to be given back, until it is time to renew."""
        waited = None if due is None else max(SHORTEST_TICK, due - monotonic())
        try:
            found = [self._queue.get(timeout=waited)]
            while not self._queue.empty():
                found.append(self._queue.get_nowait())
        except Empty:
            return []
        return found

    def _give_back(self, found: list[list[HeldSlot] | threading.Event]) -> list[HeldSlot]:
        """Those that could not be given back, to be tried again."""
        places = [place for one in found if isinstance(one, list) for place in one]
        for place in places:
            self._held.pop(place, None)
            place.is_released = True
        failed: list[HeldSlot] = []
        for store, clock, some in _by_store(places):
            try:
                if hasattr(store, "release"):
                    failed += released(some, store.release(*wire_places(some, clock)))
                else:
                    for place in some:
                        place.account.give_back(place)
            except Exception:  # of one store: the places in others are given back all the same
                log.exception("giving places back failed; they run off by themselves")
        for one in found:
            if isinstance(one, threading.Event):
                one.set()
        return still_held(failed)

    def _renew(self) -> None:
        for place in list(self._held):
            if place.is_due():
                try:
                    place.renew()
                except Exception:  # of one store: the places in others are renewed all the same
                    log.exception("renewing a place failed; it is tried again")
                if place.is_released:
                    self._queue.put([place])


class AsyncioReleaseQueue:
    """Of one event loop: a task that lives while there is something to give back."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, otherwise: Callable[[list[HeldSlot]], None]
    ) -> None:
        self._loop = loop
        self._otherwise = otherwise
        """Where to put what this loop cannot give back any more."""
        self._places: list[HeldSlot] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, place: HeldSlot) -> None:
        self._places.append(place)
        if self._task is None or self._task.done():
            try:
                self._task = self._loop.create_task(self._work())
            except RuntimeError:
                self._otherwise([place])

    async def flush(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)

    async def _work(self) -> None:
        while self._places:
            places, self._places = self._places, []
            try:
                failed: list[HeldSlot] = []
                for store, clock, some in _by_store(places):
                    side = store.asynchronous
                    failed += released(some, await side.release(*wire_places(some, clock)))
            except asyncio.CancelledError:
                self._otherwise(places)
                raise
            except Exception:
                log.exception("giving places back failed; they run off by themselves")
                continue
            if failed := still_held(failed):
                await asyncio.sleep(RETRY_SECONDS)
                self._places += failed


def _by_store(places: Iterable[HeldSlot]) -> list[tuple[Any, Clock | None, list[HeldSlot]]]:
    groups: dict[tuple[int, int], tuple[Any, Clock | None, list[HeldSlot]]] = {}
    for place in places:
        if place.is_renewing:
            continue  # who renews it gives it back
        store, clock = place.account.store, place.account.clock
        groups.setdefault((id(store), id(clock)), (store, clock, []))[2].append(place)
    return list(groups.values())


def wire_places(places: list[HeldSlot], clock: Clock | None) -> tuple[list[Any], int | None]:
    """As a store's `release` takes them."""
    return [(one.charge, one.at, one.degraded) for one in places], clock and clock()


def released(places: list[HeldSlot], failed: list[Any]) -> list[HeldSlot]:
    """Those that a store could not give back; who waits for one of the others is told."""
    lost = {(one[0][1], one[1]) for one in failed}
    left = []
    for place in places:
        if lost and (place.charge[1], place.at) in lost:
            left.append(place)
        else:
            place.account.lines.wake(place_name(place.charge))
    return left


def still_held(places: list[HeldSlot]) -> list[HeldSlot]:
    """Those that have not run off by themselves meanwhile."""
    now = monotonic()
    return [place for place in places if now - place.since < place.hold][:MOST_RETRIED]


_keepers: dict[int, SlotRenewer] = {}


def keeper_of_process() -> SlotRenewer:
    """This process's own: a parent's thread is not in its child, and its places are the parent's to give back."""
    pid = getpid()
    keeper = _keepers.get(pid)
    if keeper is None:
        keeper = _keepers.setdefault(pid, SlotRenewer())
        for other in [known for known in list(_keepers) if known != pid]:
            _keepers.pop(other, None)
    return keeper


def flush() -> None:
    keeper_of_process().flush()


def _flush_at_exit() -> None:
    """A script that ends right behind its `with` has given its place back. Registered late: who is registered first, as the finalizers
    that close a store, runs last."""
    atexit.register(flush)
    forking: Any = sys.modules.get("multiprocessing.util")
    if forking is not None:
        # Its children end without what atexit knows.
        forking.Finalize(None, flush, exitpriority=0)


async def aflush() -> None:
    await keeper_of_process().aflush()
