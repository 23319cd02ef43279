"""Who is shed? So that the share is kept, no client's rhythm decides, and `last` is spared as long as there are others.

Every request adds its share to what is owed, every rejected one pays 1 of it. Rejecting whenever a whole 1 is owed would keep the share
best, but at 50 % reject every second request: always the same one of two clients that take turns. Pure chance would be fair, and stray.
So chance decides, and leans towards what is owed: after any number of requests the share is kept to a few.

Requests of `last` add to what is owed too, and others pay it: the more there are of `last`, the more of the others are rejected. Only
when all others are, and it still grows, does `last` pay.

`except`: urls under which nothing is shed, if all readings of the request's path are under them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random

from diana.core.path_readings import PathReading, readings_under_mounts
from diana.core.request import Request
from diana.core.url_pattern import SegmentTree, Url
from diana.runtime.fork import fork_safe_lock

LEAN = 0.05
"""For each request that is owed, so much more likely."""
PATIENCE = 32.0
"""What a run of `last` may add beyond what makes all others be rejected, before `last` is shed."""


class ShedSelector:
    def __init__(self, chance: Random | None = None) -> None:
        self._chance = chance or Random()  # noqa: S311  # no secret
        self._owed = 0.0
        self._lock = fork_safe_lock()

    def picks(self, reject: int, is_last: Callable[[], bool]) -> bool:
        """Whether this one is rejected, of requests of which `reject` percent are to be. Only who would be is looked up in `last`."""
        share, dice = reject / 100, self._chance.random()
        with self._lock:
            likely = share + LEAN * self._owed
            picked = dice < likely
            self._owed += share - picked
        if picked and likely <= 1.0 + LEAN * PATIENCE and is_last():
            with self._lock:
                self._owed += 1.0
            return False
        return picked

    def retry_after(self, shortest: int, longest: int) -> int:
        # A die by hand: randint costs as much as all the rest of a rejection.
        return shortest + int(self._chance.random() * (longest - shortest + 1))

    def forgive(self) -> None:
        """A level was left: what was owed under it is not the next one's."""
        with self._lock:
            self._owed = 0.0


LONGEST_REMEMBERED = 256


class Exemption:
    def __init__(self, urls: tuple[Url, ...], mounts: tuple[PathReading, ...]) -> None:
        tree = SegmentTree((url, url) for url in urls)

        def covers(path: str, mount: str) -> bool:
            """What cannot be read is not exempt: a client could choose to be read badly."""
            readings = readings_under_mounts(path, mount, mounts)
            return readings is not None and all(map(tree.covering, readings.sent))

        self._covers = covers
        self._remembered = lru_cache(4_096)(covers)

    def covers(self, request: Request) -> bool:
        path, mount = request.path, request.mount
        is_short = len(path) + len(mount) <= LONGEST_REMEMBERED
        return (self._remembered if is_short else self._covers)(path, mount)
