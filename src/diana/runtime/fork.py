"""Servers that fork, each in its own way; and locks of stores that work in a forked child.

A background thread must not import a module. If the process forks during the import, the child inherits the module's import lock in a
locked state, and the first thread of the child that needs the module never returns. So a module that a background thread may need, also
one that Python itself imports late, is imported before the thread starts.

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


def is_about_to_fork() -> bool:
    """Whether this is uWSGI before its workers are forked.

    It forks in C, at a moment at which any thread may be running Python. Then the worker's copy of the interpreter is locked by a
    thread that does not exist there, and the worker never answers. So no thread of ours is started there, but in the worker, with the
    first use.
    """
    uwsgi = sys.modules.get("uwsgi")
    if not hasattr(uwsgi, "worker_id") or not hasattr(uwsgi, "mule_id"):
        return False
    if uwsgi.worker_id() or uwsgi.mule_id():  # type: ignore[union-attr]
        return False
    # A spooler is forked too, and has no number. The question can be asked only where there are spoolers.
    is_spooler = getattr(uwsgi, "i_am_the_spooler", None)
    return is_spooler is None or not is_spooler()


def loses_threads_after_fork() -> bool:
    """Whether greenlets may replace threads: a child is patched, or gets its hub, after the fork, and what was started before is lost."""
    return "gevent" in sys.modules or "eventlet" in sys.modules


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
