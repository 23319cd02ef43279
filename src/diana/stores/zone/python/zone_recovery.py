"""Changes that are whole or not at all, whenever the process dies (`Undo`), and the lock of a zone in Python (`ZoneLock`).

Before a line is changed, it is copied to the undo lines, and then counted. When all changes are made, the count is set back to 0. A
process that acquires the zone's lock and finds another count restores the lines: the last holder was killed, or interrupted by an
exception. Restoring may be interrupted too, and is simply done again. The count is one aligned number, written by one instruction, and no
other process reads before it has the lock.

The lock is one of fcntl, which the kernel releases when its process dies. The kernel wakes the processes that wait for it, but a process
that has just released it and wants it again is faster: a busy worker would keep the others out for seconds. So there is a second lock, a
turnstile. A process that finds the lock taken takes the turnstile, sets a flag in the zone, and waits for the lock; while the flag is
set, all others queue at the turnstile. While no process waits, the turnstile costs nothing. A process that dies in the turnstile leaves
only the flag behind, and the next one to go through resets it.
"""

from __future__ import annotations

import errno
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
from functools import partial
from time import sleep

from diana.stores.zone.python.zone_layout import LINE, UNDO_LINES, Layout


class Undo:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._noted: set[int] = set()

    @property
    def lines(self) -> int:
        """How many are being changed."""
        return len(self._noted)

    def note(self, place: int) -> None:
        """The line of this place is about to be changed."""
        line = place & -LINE
        noted = self._noted
        if line in noted:
            return
        layout, number = self._layout, len(noted)
        if number == UNDO_LINES:
            raise RuntimeError("too much is changed at once")
        copy = layout.undo_lines + number * LINE
        layout.mapping[copy : copy + LINE] = layout.mapping[line : line + LINE]
        layout.longs[layout.undo_places + number] = line
        layout.longs[layout.undo_count] = number + 1
        noted.add(line)

    def done(self) -> None:
        """All changes are made."""
        self._layout.longs[self._layout.undo_count] = 0
        self._noted.clear()

    def roll_back(self) -> None:
        """Nothing of it has happened."""
        layout = self._layout
        number = layout.longs[layout.undo_count]
        for each in range(min(max(number, 0), UNDO_LINES) - 1, -1, -1):
            line = layout.longs[layout.undo_places + each]
            copy = layout.undo_lines + each * LINE
            if 0 < line <= len(layout.mapping) - LINE:
                layout.mapping[line : line + LINE] = layout.mapping[copy : copy + LINE]
        self.done()


class ZoneLock:
    """`for _ in lock.tried: try: … finally: lock.release()`: a loop, so that no signal can strike between the taking and the `try`."""

    def __init__(self, layout: Layout, descriptor: int) -> None:
        self._layout = layout
        self._descriptor = descriptor
        self.tried = iter(partial(lockf, descriptor, LOCK_EX | LOCK_NB, 1), False)
        """OSError if another process has it: see `is_busy`."""
        self.waited = iter(self._wait_in_line, False)
        self.release = partial(lockf, descriptor, LOCK_UN, 1)
        self._turnstile = partial(lockf, descriptor, LOCK_EX, 1, 1)
        self._leave_turnstile = partial(lockf, descriptor, LOCK_UN, 1, 1)

    def is_busy(self, error: OSError) -> bool:
        """Whether to try again, by way of the turnstile."""
        if error.errno == errno.EDEADLK:
            # The kernel takes the threads of a process for one: with two zones it may see a circle where there is none. If there is one,
            # it is for a lock that this process has and does not know of.
            self.release()
            sleep(0.000_1)
        elif error.errno not in (errno.EAGAIN, errno.EACCES):
            return False
        self._layout.longs[self._layout.waiting] = 1
        return True

    def _wait_in_line(self) -> None:
        longs, waiting = self._layout.longs, self._layout.waiting
        # All of it in the `try`: a signal may strike behind any call. To give up what one does not have does no harm.
        try:
            self._turnstile()
            longs[waiting] = 1
            lockf(self._descriptor, LOCK_EX, 1)
            longs[waiting] = 0
            self._leave_turnstile()
        except BaseException:
            try:
                self.release()
            finally:
                self._leave_turnstile()
            raise
