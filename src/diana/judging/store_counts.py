"""The numbers that an observer reads of one guard.

An observer outlives the guards that it observes. It keeps the last numbers of a guard, because a counter never decreases, but not the
guard's stores, with their files and shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

from diana.judging.giving_back import RefundPlanner


class StoreCounts:
    def __init__(self, store: Any, giving_back: RefundPlanner) -> None:
        self._store = _weakly(store)
        self._giving_back = ref(giving_back)
        self._last: dict[str, int] = {"expired_places": 0}

    def __call__(self) -> Mapping[str, int]:
        """By name, as far as the guard and its store still exist; else as they were when this was last called."""
        store, giving_back = self._store(), self._giving_back()
        if store is not None and hasattr(store, "counts"):
            self._last.update(store.counts())
        if giving_back is not None:
            self._last["expired_places"] = sum(account.expired for account in giving_back.accounts)
        return self._last


def _weakly(store: Any) -> Callable[[], Any]:
    try:
        return ref(store)
    except TypeError:  # a store with __slots__
        return lambda: store
