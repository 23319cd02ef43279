"""Processes that fork, and servers that do it in their own way.

A background thread must not import a module. If the process forks during the import, the child inherits the module's import lock in a
locked state, and the first thread of the child that needs the module never returns. So a module that a background thread may need, also
one that Python itself imports late, is imported before the thread starts.
"""

from __future__ import annotations

import sys


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
