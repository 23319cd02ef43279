"""The tables of a store in memory, and when each of their keys is forgotten.

What bites in a limiter's memory is not the counting but the forgetting. A client that invents keys must not fill the machine, an
expired key must not be found by walking over all of them, and a flood must not wash away the counter of somebody who is blocked. So:

- Every key stands in exactly one of two agendas. `expiring` says when its state will be as good as none; `blocked` says when a
  key that was found denied will pass again.
- Each `take` looks at a few keys whose time has come, and at a few more when there are over `max_keys`. The idle go first, those that
  are nearest to being forgotten anyway; a blocked key goes only when its limit has nothing but blocked keys.
- The key that goes is one of the limit that has the most keys: a flood of keys under one rule does not push out those of another.
- A key that has been used since it was put into its slot moves to a later one. That is paid for by the uses.
- A signal handler may raise in the middle of all this. What is being changed is marked, and whoever comes next puts the agendas
  together anew from the tables.

Rejected: an LRU order (a flood of strangers evicts the blocked), a timer thread (wakes, forks badly, needs closing), and a sweep of
everything (a pause that grows with the keys).
"""

from __future__ import annotations

from typing import cast

from diana.core.contracts import State
from diana.core.counter import CounterSpec
from diana.stores.memory.eviction import NO_TIME, SLOT_BITS, ExpiryQueue, KeyCountIndex, TimeBucket
from diana.stores.memory.limit_table import UNLISTED, Kept, LimitTable

LOOKS = 8
"""Keys looked at per visit: more than a visit adds, so that the store never falls behind."""
GRACE_US = 1 << 25
"""A key is kept for half a minute more: one in steady use is not forgotten and met again every second."""
OVERFULL = -1
"""As the moment to tend: at once."""


class LimitTables:
    """A table per limit. The lock is the store's."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self.keys = 0
        """How many are remembered."""
        self.by_id: dict[str, LimitTable] = {}
        self.numbered: list[LimitTable] = []
        self._unused: list[int] = []
        self.expiring: ExpiryQueue[LimitTable, Kept] = ExpiryQueue(self.numbered)
        self.blocked: ExpiryQueue[LimitTable, Kept] = ExpiryQueue(self.numbered)
        self._crowd = KeyCountIndex()
        self.due = NO_TIME
        """When to `tend`."""
        self.is_changing = False
        """Set while what belongs together is changed; found set, a signal handler raised in the middle of it."""

    def bound(self, meter: CounterSpec, now: int) -> LimitTable:
        """The limit's table, which stays, however empty."""
        self.begin(now)
        table = self.listed(self.by_id.get(meter.id) or LimitTable(meter))
        table.bound = True
        self.is_changing = False
        return table

    def clear(self, now: int) -> None:
        for table in self.by_id.values():
            table.clear()
        self._mend(now)
        self._plan()
        self.is_changing = False

    def of_meter(self, meter: CounterSpec, now: int) -> LimitTable:
        """The limit's table; if it has none yet, one that is listed with its first key."""
        table = self.by_id.get(meter.id)
        if table is None:
            return LimitTable(meter)
        if table.meter is not meter:
            table.turn_to(meter, now)
        return table

    def listed(self, table: LimitTable) -> LimitTable:
        """The table under which the limit is known, from now on if not before."""
        table = self.by_id.setdefault(table.meter.id, table)
        if table.number == UNLISTED:
            if self._unused:
                table.number = self._unused.pop()
                self.numbered[table.number] = table
            else:
                table.number = len(self.numbered)
                self.numbered.append(table)
        return table

    def _unlist(self, table: LimitTable) -> None:
        """The last key is gone. If the rule is gone too, nothing is left of it; else the next key lists it again."""
        del self.by_id[table.meter.id]
        self._unused.append(table.number)
        # No agenda holds a key of it, so nobody looks here before the number is used again.
        self.numbered[table.number] = cast("LimitTable", None)
        table.number = UNLISTED

    def write(self, table: LimitTable, key: Kept, state: State, now: int) -> None:
        """A key that may be new; if so, it is to be forgotten some day."""
        if key in table.states:
            table.states[key] = state
            return
        self.begin(now)
        if table.number == UNLISTED:
            table = self.listed(table)
        table.states[key] = state
        reset_us = table.reset_us(key, now)
        self.keys += 1
        self.expiring.put(now + reset_us + GRACE_US, table.number, key)
        self._line_up(table)
        self._plan()
        self.is_changing = False

    def begin(self, now: int) -> None:
        """To change what belongs together."""
        if self.is_changing:
            self._mend(now)
        self.is_changing = True

    def _mend(self, now: int) -> None:
        """Tables and agendas anew from the states: an exception has struck between two steps. Each key is looked at soon."""
        self.numbered.clear()
        self._unused.clear()
        self.expiring, self.blocked = ExpiryQueue(self.numbered), ExpiryQueue(self.numbered)
        self._crowd = KeyCountIndex()
        self.keys = 0
        for id, table in list(self.by_id.items()):
            table.mend()
            table.number, table.place = UNLISTED, 0
            if not table.states and not table.bound:
                del self.by_id[id]
                continue
            self.listed(table)
            for key in table.states:
                self.expiring.put(now, table.number, key)
            self.keys += len(table.states)
            self._line_up(table)

    def _line_up(self, table: LimitTable) -> None:
        """The table where it belongs by now, among the others."""
        keys = len(table.states)
        place = 2 * keys + self.expiring.holds(table.number) if keys else 0
        if place != table.place:
            self._crowd.move(table.number, table.place, place)
            table.place = place

    def _plan(self) -> None:
        if self.keys > self._max_keys:
            self.due = OVERFULL
        else:
            self.due = min(self.expiring.due, self.blocked.due)

    def tend(self, now: int) -> None:
        """A few steps of housekeeping."""
        self.begin(now)
        for _ in range(LOOKS):
            if self.blocked.due <= now:
                self._revisit(*self.blocked.pop(), now)
            elif self.expiring.due <= now:
                self._revisit(*self.expiring.pop(), now)
            elif self.keys > self._max_keys:
                self._make_room(now)
            else:
                break
        self._plan()
        self.is_changing = False

    def _revisit(self, _: TimeBucket, table: LimitTable, key: Kept, now: int) -> None:
        """Its time has come: forget it, or, if it mattered half a minute ago, put it where it belongs now."""
        reset_us = table.reset_us(key, now - GRACE_US)
        if reset_us > 0:
            self.expiring.put(now + reset_us, table.number, key)
        else:
            self._forget(table, key)
        self._line_up(table)

    def _make_room(self, now: int) -> None:
        """One step towards forgetting a key of the limit that has the most: the one to expire first of those that are not blocked."""
        fullest = self._crowd.fullest()
        if not self.expiring.holds(fullest):
            _, table, key = self.blocked.pop_of(fullest)
            self._forget(table, key)
            self._line_up(table)
            return
        slot, table, key = self.expiring.pop_of(fullest)
        expires_us = now + table.reset_us(key, now) + GRACE_US
        allowed, _, retry_us, reset_us, _ = table.rest(key, 1, now)
        if expires_us >> SLOT_BITS > slot.number:
            self.expiring.put(expires_us, table.number, key)
        elif not allowed and retry_us:
            # Of places nobody knows when one is given back: until the last has run off, it may be blocked.
            later_us = retry_us if retry_us > 0 else reset_us
            self.blocked.put(now + later_us, table.number, key)
        else:
            self._forget(table, key)
        self._line_up(table)

    def _forget(self, table: LimitTable, key: Kept) -> None:
        table.forget(key)
        self.keys -= 1
        if not table.states and not table.bound:
            self._line_up(table)
            self._unlist(table)
