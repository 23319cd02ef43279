"""Counters in this process: a dictionary per limit behind one lock.

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

import re
from collections.abc import Callable
from hashlib import sha256
from time import monotonic_ns
from typing import Any, cast
from weakref import WeakSet

from diana.core.charge import ONE, Charges, checked_cost, decide_all_or_nothing
from diana.core.contracts import Clock, GiveBack, State, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.errors import ConfigError, KeyTypeError, shown
from diana.runtime.clock import EPOCH_OFFSET_US, wall_us
from diana.runtime.fork import acquiring, exclusive, fork_safe_lock, refuse_reentry
from diana.stores.memory.eviction import NO_TIME, SLOT_BITS, ExpiryQueue, KeyCountIndex, TimeBucket
from diana.stores.memory.limit_table import UNLISTED, Kept, LimitTable

MAX_KEYS = 1_000_000
LONGEST_KEY = 512
LOOKS = 8
"""Keys looked at per visit: more than a visit adds, so that the store never falls behind."""
GRACE_US = 1 << 25
"""A key is kept for half a minute more: one in steady use is not forgotten and met again every second."""
OVERFULL = -1
"""As the moment to tend: at once."""

_URL = re.compile(r"memory://(?:\?max_keys=([0-9]{1,12}))?", re.IGNORECASE)

_new = tuple.__new__


class PythonMemoryStore:
    """`memory://`, or `memory://?max_keys=50000`."""

    shared = False
    all_of_process: WeakSet[PythonMemoryStore] = WeakSet()

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = checked_size(max_keys)
        self.all_of_process.add(self)
        self._keys = 0
        self._lock = fork_safe_lock()
        self._acquiring, self._release = acquiring(self._lock), self._lock.release
        self._tables: dict[str, LimitTable] = {}
        self._numbered: list[LimitTable] = []
        self._unused: list[int] = []
        self._expiring: ExpiryQueue[LimitTable, Kept] = ExpiryQueue(self._numbered)
        self._blocked: ExpiryQueue[LimitTable, Kept] = ExpiryQueue(self._numbered)
        self._crowd = KeyCountIndex()
        self._due = NO_TIME
        self._changing = False
        """Set while what belongs together is changed; found set, somebody was interrupted in the middle of it."""

    def __len__(self) -> int:
        """How many keys are remembered."""
        return self._keys

    @classmethod
    def from_url(cls, url: str) -> PythonMemoryStore:
        return cls(cls.check_url(url))

    @staticmethod
    def check_url(url: str) -> int:
        """How many keys it asks for."""
        spelled = _URL.fullmatch(url)
        if spelled is None:
            raise ConfigError(
                f"{shown(url)} is no memory store; write memory:// or memory://?max_keys=N"
            )
        return checked_size(int(spelled[1] or MAX_KEYS))

    @exclusive
    def bind(self, meter: CounterSpec, clock: Clock | None = None) -> Take:
        self._begin(wall_us())
        table = self._listed(self._tables.get(meter.id) or LimitTable(meter))
        table.bound = True
        self._changing = False
        acquire, release = self._acquiring, self._release
        states, get = table.states, table.states.get
        decide, params, limit = meter.decide, meter.params, meter.params.limit

        def take(key: str, cost: int = 1) -> Decision:
            """Charge the key; the Decision is true if it may pass."""
            if cost is not ONE:
                cost = checked_cost(cost)
            for locked in acquire:
                if not locked:
                    refuse_reentry(self)
                    continue
                try:
                    now = monotonic_ns() // 1_000 + EPOCH_OFFSET_US if clock is None else clock()
                    if table.meter is not meter:
                        table.turn_to(meter, now)
                    state = get(key)
                    if state is None:
                        outcome = self._meet(table, meter, bounded_key(key), cost, now)
                    else:
                        after, outcome = decide(state, params, cost, now)
                        if after is not state and cost:
                            states[key] = after
                    if now >= self._due:
                        self._tend(now)
                finally:
                    release()
                break
            return _new(Decision, (outcome, limit, key, cost, now, False))

        return take

    def bind_refund(self, meter: CounterSpec, clock: Clock | None = None) -> GiveBack:
        """The same for what is given back: of places, every one is."""
        self.bind(meter, clock)
        acquire, release = self._acquiring, self._release
        states = self._tables[meter.id].states
        refund, params = meter.algorithm.refund, meter.params

        def give_back(key: str, cost: int, at: int) -> None:
            for locked in acquire:
                if not locked:
                    refuse_reentry(self)
                    continue
                try:
                    now = monotonic_ns() // 1_000 + EPOCH_OFFSET_US if clock is None else clock()
                    kept: Kept = key if key in states else bounded_key(key)
                    state = states.get(kept)
                    if state is not None:
                        states[kept] = refund(state, params, cost, at, now)
                finally:
                    release()
                break

        return give_back

    def decide(self, charges: Charges, now: int | None = None) -> list[Decision]:
        for locked in self._acquiring:
            if not locked:
                refuse_reentry(self)
                continue
            try:
                if now is None:
                    now = monotonic_ns() // 1_000 + EPOCH_OFFSET_US
                if len(charges) == 1:
                    decisions = [self._decide_one(*charges[0], now)]
                else:
                    decisions = self._decide_all(charges, now)
                if now >= self._due:
                    self._tend(now)
            finally:
                self._release()
            break
        return decisions

    @exclusive
    def decide_with(
        self, charges: Charges, now: int | None, elsewhere: Callable[[bool], bool]
    ) -> list[Decision]:
        """All or nothing, together with what is counted elsewhere.

        `elsewhere(denied)` charges there, unless it is denied here, and says whether all passed.
        """
        now = wall_us() if now is None else now
        found = self._look_up(charges, now)
        decisions, after = decide_all_or_nothing(charges, found[2], now)
        allowed = all(decisions)
        if not elsewhere(not allowed) and allowed:
            decisions = [
                decision._replace(outcome=meter.decide(state, meter.params, 0, now)[1])
                for decision, (meter, _, _), state in zip(decisions, charges, found[2], strict=True)
            ]
        else:
            self._write_all(*found, after, now)
        if now >= self._due:
            self._tend(now)
        return decisions

    @exclusive
    def peek(self, charges: Charges, now: int | None = None) -> list[Decision]:
        now = wall_us() if now is None else now
        _, _, states = self._look_up(charges, now)
        return decide_all_or_nothing(charges, states, now)[0]

    def refund(self, charges: Charges, at: int, now: int | None = None) -> None:
        for locked in self._acquiring:
            if not locked:
                refuse_reentry(self)
                continue
            try:
                if now is None:
                    now = monotonic_ns() // 1_000 + EPOCH_OFFSET_US
                for meter, key, cost in charges:
                    table = self._tables.get(meter.id)
                    if table is None:
                        continue
                    states = table.states
                    kept: Kept = key if key in states else bounded_key(key)
                    state = states.get(kept)
                    if state is not None:
                        refund = meter.algorithm.refund
                        states[kept] = refund(state, meter.params, cost, at, now)
            finally:
                self._release()
            break

    @exclusive
    def renew(self, charge: tuple[CounterSpec, str, int], at: int, now: int | None = None) -> int:
        meter, key, cost = charge
        algorithm: Any = meter.algorithm
        now = wall_us() if now is None else now
        table, kept = self._table(meter, now), bounded_key(key)
        before = table.states.get(kept)
        after, moment = algorithm.renew(before, meter.params, cost, at, now)
        if moment:
            self._write(table, kept, after, now)
        return int(moment)

    @exclusive
    def reset(self, meter: CounterSpec, key: str) -> None:
        table, kept = self._tables.get(meter.id), bounded_key(key)
        if table is not None and kept in table.states:
            table.states[kept] = None

    @exclusive
    def clear(self) -> None:
        """Forget every key."""
        for table in self._tables.values():
            table.clear()
        self._mend(wall_us())
        self._plan()
        self._changing = False

    def close(self) -> None:
        """Nothing is held but memory."""

    def _decide_one(self, meter: CounterSpec, key: str, cost: int, now: int) -> Decision:
        """Alone there is nothing to weigh: a quarter faster."""
        if cost is not ONE:
            checked_cost(cost)
        table = self._table(meter, now)
        state = table.states.get(key)
        if state is None:
            outcome = self._meet(table, meter, bounded_key(key), cost, now)
        else:
            after, outcome = meter.decide(state, meter.params, cost, now)
            if after is not state and cost:
                table.states[key] = after
        return _new(Decision, (outcome, meter.params.limit, key, cost, now, False))

    def _decide_all(self, charges: Charges, now: int) -> list[Decision]:
        found = self._look_up(charges, now)
        decisions, after = decide_all_or_nothing(charges, found[2], now)
        self._write_all(*found, after, now)
        return decisions

    def _write_all(
        self,
        tables: list[LimitTable],
        keys: list[Kept],
        states: list[State | None],
        after: list[State | None],
        now: int,
    ) -> None:
        for place, state in enumerate(after):
            if state is not None:
                if states[place] is None:
                    self._write(tables[place], keys[place], state, now)
                else:
                    tables[place].states[keys[place]] = state

    def _meet(
        self, table: LimitTable, meter: CounterSpec, key: Kept, cost: int, now: int
    ) -> tuple[bool, int, int, int, int]:
        """Charge a key that may be new, or too long to be kept as it is."""
        before = table.states.get(key)
        after, outcome = meter.decide(before, meter.params, cost, now)
        if after is not None and after is not before and cost:
            self._write(table, key, after, now)
        return outcome

    def _table(self, meter: CounterSpec, now: int) -> LimitTable:
        """The limit's table; if it has none yet, one that is listed with its first key."""
        table = self._tables.get(meter.id)
        if table is None:
            return LimitTable(meter)
        if table.meter is not meter:
            table.turn_to(meter, now)
        return table

    def _listed(self, table: LimitTable) -> LimitTable:
        """The table under which the limit is known, from now on if not before."""
        table = self._tables.setdefault(table.meter.id, table)
        if table.number == UNLISTED:
            if self._unused:
                table.number = self._unused.pop()
                self._numbered[table.number] = table
            else:
                table.number = len(self._numbered)
                self._numbered.append(table)
        return table

    def _unlist(self, table: LimitTable) -> None:
        """The last key is gone. If the rule is gone too, nothing is left of it; else the next key lists it again."""
        del self._tables[table.meter.id]
        self._unused.append(table.number)
        # No agenda holds a key of it, so nobody looks here before the number is used again.
        self._numbered[table.number] = cast("LimitTable", None)
        table.number = UNLISTED

    def _look_up(
        self, charges: Charges, now: int
    ) -> tuple[list[LimitTable], list[Kept], list[State | None]]:
        """Of each counter its table, its key as it is kept, and its state."""
        listed = self._tables
        tables: list[LimitTable] = []
        keys: list[Kept] = []
        states: list[State | None] = []
        for meter, key, _ in charges:
            table = listed.get(meter.id)
            if table is None or table.meter is not meter:
                table = self._table(meter, now)
            kept: Kept = key
            state = table.states.get(key)
            if state is None:
                kept = bounded_key(key)
                state = table.states.get(kept)
            tables.append(table)
            keys.append(kept)
            states.append(state)
        return tables, keys, states

    def _write(self, table: LimitTable, key: Kept, state: State, now: int) -> None:
        """A key that may be new; if so, it is to be forgotten some day."""
        if key in table.states:
            table.states[key] = state
            return
        self._begin(now)
        if table.number == UNLISTED:
            table = self._listed(table)
        table.states[key] = state
        reset_us = table.reset_us(key, now)
        self._keys += 1
        self._expiring.put(now + reset_us + GRACE_US, table.number, key)
        self._line_up(table)
        self._plan()
        self._changing = False

    def _begin(self, now: int) -> None:
        """To change what belongs together."""
        if self._changing:
            self._mend(now)
        self._changing = True

    def _mend(self, now: int) -> None:
        """Tables and agendas anew from the states: an exception has struck between two steps. Each key is looked at soon."""
        self._numbered.clear()
        self._unused.clear()
        self._expiring, self._blocked = ExpiryQueue(self._numbered), ExpiryQueue(self._numbered)
        self._crowd = KeyCountIndex()
        self._keys = 0
        for id, table in list(self._tables.items()):
            table.mend()
            table.number, table.place = UNLISTED, 0
            if not table.states and not table.bound:
                del self._tables[id]
                continue
            self._listed(table)
            for key in table.states:
                self._expiring.put(now, table.number, key)
            self._keys += len(table.states)
            self._line_up(table)

    def _line_up(self, table: LimitTable) -> None:
        """The table where it belongs by now, among the others."""
        keys = len(table.states)
        place = 2 * keys + self._expiring.holds(table.number) if keys else 0
        if place != table.place:
            self._crowd.move(table.number, table.place, place)
            table.place = place

    def _plan(self) -> None:
        if self._keys > self._max_keys:
            self._due = OVERFULL
        else:
            self._due = min(self._expiring.due, self._blocked.due)

    def _tend(self, now: int) -> None:
        """A few steps of housekeeping."""
        self._begin(now)
        for _ in range(LOOKS):
            if self._blocked.due <= now:
                self._revisit(*self._blocked.pop(), now)
            elif self._expiring.due <= now:
                self._revisit(*self._expiring.pop(), now)
            elif self._keys > self._max_keys:
                self._make_room(now)
            else:
                break
        self._plan()
        self._changing = False

    def _revisit(self, _: TimeBucket, table: LimitTable, key: Kept, now: int) -> None:
        """Its time has come: forget it, or, if it mattered half a minute ago, put it where it belongs now."""
        reset_us = table.reset_us(key, now - GRACE_US)
        if reset_us > 0:
            self._expiring.put(now + reset_us, table.number, key)
        else:
            self._forget(table, key)
        self._line_up(table)

    def _make_room(self, now: int) -> None:
        """One step towards forgetting a key of the limit that has the most: the one to expire first of those that are not blocked."""
        fullest = self._crowd.fullest()
        if not self._expiring.holds(fullest):
            _, table, key = self._blocked.pop_of(fullest)
            self._forget(table, key)
            self._line_up(table)
            return
        slot, table, key = self._expiring.pop_of(fullest)
        expires_us = now + table.reset_us(key, now) + GRACE_US
        allowed, _, retry_us, reset_us, _ = table.rest(key, 1, now)
        if expires_us >> SLOT_BITS > slot.number:
            self._expiring.put(expires_us, table.number, key)
        elif not allowed and retry_us:
            # Of places nobody knows when one is given back: until the last has run off, it may be blocked.
            later_us = retry_us if retry_us > 0 else reset_us
            self._blocked.put(now + later_us, table.number, key)
        else:
            self._forget(table, key)
        self._line_up(table)

    def _forget(self, table: LimitTable, key: Kept) -> None:
        table.forget(key)
        self._keys -= 1
        if not table.states and not table.bound:
            self._line_up(table)
            self._unlist(table)


def checked_size(max_keys: int) -> int:
    if max_keys.__class__ is not int or max_keys < 1:
        raise ConfigError(f"max_keys is {max_keys!r}; write a whole number from 1")
    return max_keys


def bounded_key(key: str) -> Kept:
    """Keys are bounded in size, whoever chooses them."""
    if not isinstance(key, str):
        raise KeyTypeError(key)
    if len(key) <= LONGEST_KEY:
        return key
    return sha256(key.encode("utf-8", "surrogatepass")).digest()[:16]
