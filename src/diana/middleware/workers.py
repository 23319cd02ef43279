"""Several worker processes of one server, each with counters of its own: `rpu: 10` under `gunicorn -w 4` lets 40 pass. One of them says so.

Workers know nothing of each other, and each server tells their number in its own way, or not at all. But they are children of one process
and serve the same rules; so each takes a name made of both, as a socket without a file, which the kernel frees when the process
ends. The one that finds the first name taken and takes the second is the second worker, and warns; later ones say nothing.

Rejected: reading the command line (`-c` and `uvicorn.run(workers=)` are not in it) and `wsgi.multiprocess` (only in requests, only WSGI,
and all workers would warn).
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from threading import Lock

from diana.guard import AsyncGuard, Guard

log = logging.getLogger("diana")

_lock = Lock()
_taken: dict[str, list[socket.socket]] = {}
"""By name, in this process."""
after_fork = False
"""A server that loads the app before it forks (gunicorn --preload) has no workers yet when the middleware is made."""


def warn_of_several_workers(guard: Guard | AsyncGuard) -> None:
    """Once per process and rules: take a name, and warn if this is the second process that does."""
    policy = guard.policy
    rules = [rule for rule in policy.rules if rule.scope == "local" or not guard.has_shared_store]
    if not rules or guard.counts_for_machine:
        return
    # Tests run in several processes too, and serve nobody.
    if not sys.platform.startswith("linux") or "pytest" in sys.modules:
        return
    name = f"diana-{os.getuid()}-{os.getppid()}-{policy.version}"
    with _lock:
        if name in _taken:
            return
        _taken[name] = []
        for place in (1, 2):
            if _takes(name, place):
                break
        else:
            return
    if place == 2:
        rule = rules[0]
        log.warning(
            "several worker processes serve these rules, and each counts by itself: rule %r lets %d pass in every one of them; "
            "to count together on this machine, write local_store: shared://NAME, such as local_store: shared://api; "
            "for several machines, scope: global and a store, such as store: redis://localhost:6379",
            rule.name,
            rule.rpu,
        )


def warn_after_fork(guard: Guard | AsyncGuard) -> None:
    """For a worker whose middleware was made before it was forked: when it starts, or at its first request."""
    global after_fork
    if after_fork:
        after_fork = False
        warn_of_several_workers(guard)


def _takes(name: str, place: int) -> bool:
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        taken.bind(f"\0{name}-{place}")
    except OSError:
        taken.close()
        return False
    _taken[name].append(taken)
    return True


def _forget_in_child() -> None:
    """The parent's names stay the parent's. Not taken anew at once: not every child is a worker."""
    global after_fork, _lock
    _lock = Lock()
    after_fork = bool(_taken)
    for sockets in _taken.values():
        for taken in sockets:
            taken.close()
    _taken.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
