"""A lock that a forked child can use: whoever held it in the parent is not there to let go."""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

_locks: WeakSet[threading.Lock] = WeakSet()


def fork_safe_lock() -> threading.Lock:
    # By its name in the module: gevent may have patched it after this was imported.
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
