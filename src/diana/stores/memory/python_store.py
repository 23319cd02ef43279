"""Counters in this process: a dictionary per limit behind one lock.

What is forgotten, and when: `limit_tables.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from time import monotonic_ns
from typing import Any
from weakref import WeakSet

from diana.core.charge import ONE, Charges, checked_cost, decide_all_or_nothing
from diana.core.contracts import Clock, GiveBack, State, Take
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.errors import ConfigError, KeyTypeError, shown
from diana.runtime.clock import EPOCH_OFFSET_US, wall_us
from diana.runtime.fork import acquiring, exclusive, fork_safe_lock, refuse_reentry
from diana.stores.memory.limit_table import Kept, LimitTable
from diana.stores.memory.limit_tables import LimitTables

MAX_KEYS = 1_000_000
LONGEST_KEY = 512

_URL = re.compile(r"memory://(?:\?max_keys=([0-9]{1,12}))?", re.IGNORECASE)

_new = tuple.__new__


class PythonMemoryStore:
    """`memory://`, or `memory://?max_keys=50000`."""

    shared = False
    all_of_process: WeakSet[PythonMemoryStore] = WeakSet()

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._tables = LimitTables(checked_size(max_keys))
        self.all_of_process.add(self)
        self._lock = fork_safe_lock()
        self._acquiring, self._release = acquiring(self._lock), self._lock.release

    def __len__(self) -> int:
        """How many keys are remembered."""
        return self._tables.keys

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
        tables = self._tables
        table = tables.bound(meter, wall_us())
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
                    if now >= tables.due:
                        tables.tend(now)
                finally:
                    release()
                break
            return _new(Decision, (outcome, limit, key, cost, now, False))

        return take

    def bind_refund(self, meter: CounterSpec, clock: Clock | None = None) -> GiveBack:
        """The same for what is given back: of places, every one is."""
        self.bind(meter, clock)
        acquire, release = self._acquiring, self._release
        states = self._tables.by_id[meter.id].states
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
                if now >= self._tables.due:
                    self._tables.tend(now)
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
        if now >= self._tables.due:
            self._tables.tend(now)
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
                    table = self._tables.by_id.get(meter.id)
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
        table, kept = self._tables.of_meter(meter, now), bounded_key(key)
        before = table.states.get(kept)
        after, moment = algorithm.renew(before, meter.params, cost, at, now)
        if moment:
            self._tables.write(table, kept, after, now)
        return int(moment)

    @exclusive
    def reset(self, meter: CounterSpec, key: str) -> None:
        table, kept = self._tables.by_id.get(meter.id), bounded_key(key)
        if table is not None and kept in table.states:
            table.states[kept] = None

    @exclusive
    def clear(self) -> None:
        """Forget every key."""
        self._tables.clear(wall_us())

    def close(self) -> None:
        """Nothing is held but memory."""

    def _decide_one(self, meter: CounterSpec, key: str, cost: int, now: int) -> Decision:
        """Alone there is nothing to weigh: a quarter faster."""
        if cost is not ONE:
            checked_cost(cost)
        table = self._tables.of_meter(meter, now)
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
                    self._tables.write(tables[place], keys[place], state, now)
                else:
                    tables[place].states[keys[place]] = state

    def _meet(
        self, table: LimitTable, meter: CounterSpec, key: Kept, cost: int, now: int
    ) -> tuple[bool, int, int, int, int]:
        """Charge a key that may be new, or too long to be kept as it is."""
        before = table.states.get(key)
        after, outcome = meter.decide(before, meter.params, cost, now)
        if after is not None and after is not before and cost:
            self._tables.write(table, key, after, now)
        return outcome

    def _look_up(
        self, charges: Charges, now: int
    ) -> tuple[list[LimitTable], list[Kept], list[State | None]]:
        """Of each counter its table, its key as it is kept, and its state."""
        listed = self._tables.by_id
        tables: list[LimitTable] = []
        keys: list[Kept] = []
        states: list[State | None] = []
        for meter, key, _ in charges:
            table = listed.get(meter.id)
            if table is None or table.meter is not meter:
                table = self._tables.of_meter(meter, now)
            kept: Kept = key
            state = table.states.get(key)
            if state is None:
                kept = bounded_key(key)
                state = table.states.get(kept)
            tables.append(table)
            keys.append(kept)
            states.append(state)
        return tables, keys, states


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
