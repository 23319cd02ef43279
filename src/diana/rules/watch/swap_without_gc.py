"""Reading ten thousand rules in a process that goes on serving, without a noticeable pause.

Three things stop all threads at once. The garbage collector, which walks over everything there is, again and again, while much is being
made; freeing a large structure in one go; and a busy thread, which others must wait for until the interpreter makes it give way.

The collector and the switch interval belong to the application: nothing here touches them, unless the process is Diana's own and says so
(`may_tune_process`), as the gateway does.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

GIVE_WAY_SECONDS = 0.000_5


class _Impact:
    """At most one at a time: what is set for all threads has to be put back as it was."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.put_back: float | None = None
        """The switch interval to return to, while one works; then the collector is at rest, too."""
        self.allowed = False

    def begin(self) -> None:
        if self.allowed and gc.isenabled():
            self.put_back = sys.getswitchinterval()
            sys.setswitchinterval(min(GIVE_WAY_SECONDS, self.put_back))
            gc.disable()

    def end(self) -> None:
        if self.put_back is not None:
            sys.setswitchinterval(self.put_back)
            self.put_back = None
            if not gc.get_freeze_count():
                # What was made meanwhile counts as old from the start; else the next look at the young would be at all of it.
                gc.freeze()
                gc.unfreeze()
            gc.enable()

    def after_fork(self) -> None:
        self.lock = Lock()
        self.end()


_impact = _Impact()


def may_tune_process() -> None:
    """From now on, for this process: while rules are read, the collector rests and other threads get to run more often."""
    _impact.allowed = True


@contextmanager
def low_impact() -> Iterator[None]:
    """For a thread that creates many objects while others serve; in an application's process it changes nothing."""
    with _impact.lock:
        _impact.begin()
        try:
            yield
        finally:
            _impact.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_impact.after_fork)
