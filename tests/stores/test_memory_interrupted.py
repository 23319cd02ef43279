"""A signal handler may raise anywhere inside the memory store in Python: what comes after finds it in order. In C none can."""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from diana.core.charge import Charge
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.limit import Limit
from diana.runtime.entry_points import algorithms
from diana.stores.memory.python_store import PythonMemoryStore

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
HOUSE = (
    "/stores/memory/python_store.py",
    "/stores/memory/limit_table.py",
    "/stores/memory/limit_tables.py",
    "/stores/memory/eviction.py",
    "/core/charge.py",
    "/core/entry_log.py",
)
NEVER_STRUCK = (
    "try:",
    "finally:",
    "for locked in acquire:",
    "for locked in self._acquiring:",
    "if not locked:",
    "release()",
    "self._release()",
)
"""The interpreter looks for signals after calls and jumps back, not between taking the lock and the `try`, nor before its release."""


class Struck(Exception):
    pass


def struck_at(step: int, action: Callable[[], object]) -> bool:
    """Whether the action was interrupted, before its so many-th line."""
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(HOUSE):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and line not in NEVER_STRUCK:
            left -= 1
            if left == 0:
                raise Struck
        return trace

    sys.settrace(trace)
    try:
        action()
    except Struck:
        return True
    finally:
        sys.settrace(None)
    return False


def meter(name: str, code: str, rpu: int) -> CounterSpec:
    return meter_from_limit(name, Limit(rpu, SECOND_US), algorithms()[code], {})


def in_order(store: PythonMemoryStore) -> None:
    """Every key stands in exactly one agenda, under the number of its table; the counts are true."""
    listed: Counter[tuple[str, Any]] = Counter()
    for agenda in (store._tables.expiring, store._tables.blocked):
        for slot, queue in agenda._queues.items():
            for key in queue:
                listed[store._tables.numbered[slot.owner].meter.id, key] += 1
        assert set(agenda._queues) == set(agenda._order)
    there = [(id, key) for id, table in store._tables.by_id.items() for key in table.states]
    assert listed == Counter(there)
    assert store._tables.keys == len(there)
    for table in store._tables.by_id.values():
        assert store._tables.numbered[table.number] is table
        assert table.place // 2 == len(table.states)


def full() -> tuple[PythonMemoryStore, int]:
    """At its bound, with keys that have expired, keys that are blocked, and a rule that is gone."""
    store = PythonMemoryStore(max_keys=6)
    now = BEGIN_US
    for number in range(4):
        store.decide([Charge(meter(f"gone {number}", "TB", 5), "k")], now)
    store.decide([Charge(meter("blocked", "SL", 1), "k")], now + 60 * SECOND_US)
    now += 90 * SECOND_US
    store._tables.is_changing = False
    return store, now


def actions() -> Iterator[Any]:
    wide, narrow = meter("wide", "SL", 9), meter("narrow", "TB", 3)

    def bound(store: PythonMemoryStore, now: int) -> object:
        take = store.bind(wide, lambda: now)
        return [take(f"bound {number}") for number in range(9)]

    def several(store: PythonMemoryStore, now: int) -> object:
        return [
            store.decide([Charge(wide, f"{number}"), Charge(narrow, "k")], now)
            for number in range(9)
        ]

    def forgotten(store: PythonMemoryStore, now: int) -> object:
        return [
            store.decide([Charge(narrow, "k")], now + hour * 3_600 * SECOND_US) for hour in range(4)
        ]

    yield pytest.param(bound, id="take")
    yield pytest.param(several, id="decide")
    yield pytest.param(forgotten, id="forget")


@pytest.mark.parametrize("action", list(actions()))
def test_struck_at_any_line_it_is_in_order_afterwards(
    action: Callable[[PythonMemoryStore, int], object],
) -> None:
    step = 0
    while True:
        step += 1
        store, now = full()
        struck = struck_at(step, lambda: action(store, now))  # noqa: B023
        assert not store._lock.locked()
        after = meter("after", "TB", 5)
        later = now + 5 * 3_600 * SECOND_US
        for number in range(20):
            assert store.decide([Charge(after, f"new {number}")], later)[0]
            in_order(store)
        assert len(store) <= 6
        if not struck:
            break
    assert step > 100, "it was hardly ever struck"


def test_no_count_is_lost_when_a_table_is_struck_while_it_shrinks() -> None:
    some = meter_from_limit("shrinks", Limit(1, 86_400 * SECOND_US), algorithms()["TB"], {})
    for step in range(1, 12):
        store = PythonMemoryStore()
        for number in range(1_100):
            store.decide([Charge(some, f"{number}")], BEGIN_US)
        table = store._tables.by_id[some.id]
        store._tables.is_changing = True
        for number in range(1_100 - 1_100 // 8):
            table.forget(f"{number}")
        struck_at(step, lambda: table.forget("1000"))  # noqa: B023
        store.decide([Charge(some, "another")], BEGIN_US)
        in_order(store)
        assert not store.decide([Charge(some, "1050")], BEGIN_US)[0], "it has been forgotten"
