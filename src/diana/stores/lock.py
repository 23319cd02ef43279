"""Locks of stores: usable in a forked child, and refused instead of waited for without end by the call that they interrupt.

A child's copy of a lock may be held by a thread that only the parent has, so each child begins with free ones.

A signal handler, or a `__del__` that the garbage collector runs, may interrupt a thread that holds a store's lock and then need the same
lock. Waiting would be a deadlock; going on would lose a charge, because the interrupted call writes what it has already computed. So it is
an error. Recording the owner of the lock would slow down every decision. Instead a thread waits in short pieces, and only after one of
them does it look at its own stack for a frame that holds the lock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from weakref import WeakSet

from diana.core.errors import ReentrancyError

WAIT_SECONDS = 0.05
"""Long after any other thread has released the lock, on an idle machine; if it has not, it is only asked for again."""

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

_locks: WeakSet[threading.Lock] = WeakSet()


def fork_safe_lock() -> threading.Lock:
    # By its name in the module: gevent may have patched it after this was imported.
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def acquiring(lock: threading.Lock) -> Iterator[bool]:
    """`for locked in acquiring(lock):` tries to take the lock, without end; `locked` is whether it was taken this time.

    A loop over a method of the lock costs half of a `with`; and unlike after a call of acquire(), no signal can strike between the taking
    and a `try` behind it, which would leave the lock held for ever:

        for locked in self._acquiring:
            if not locked:
                refuse_reentry(self)
                continue
            try:
                ...
            finally:
                self._release()
            break
    """
    return iter(partial(lock.acquire, True, WAIT_SECONDS), None)


def refuse_reentry(store: object) -> None:
    """ReentrancyError if a call further up in this thread holds the store's lock: in a loop as above, in a method of the store."""
    frame = sys._getframe(1)
    while frame is not None:
        names = frame.f_locals
        if names.get("locked") and names.get("self") is store:
            raise ReentrancyError
        frame = frame.f_back  # type: ignore[assignment]


def exclusive(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method of a store that holds the store's lock: the store has `_acquiring` and `_release`, as above."""

    @wraps(method)
    def locked_method(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        for locked in self._acquiring:
            if not locked:
                refuse_reentry(self)
                continue
            try:
                return method(self, *args, **kwargs)
            finally:
                self._release()
        raise AssertionError("the loop ends by a return")

    return cast("Callable[Concatenate[S, P], R]", locked_method)


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
