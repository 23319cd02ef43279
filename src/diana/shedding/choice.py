"""Who is shed? So that the share is kept exactly, no client's rhythm decides, and `last` is spared as long as there are others.

Every request adds its share to a debt, every rejected one pays 1 of it. So after n requests n · share are rejected, give or take the
bound of the debt. Rejecting whenever a whole 1 is owed would reject, at 50 %, every second request: always the same one of two clients that
take turns. So chance decides, the more likely the more is owed, and what is owed keeps chance from straying.

Requests of `last` add to the debt too, and others pay it. Only when it has grown past what a run of them explains do they pay themselves.
"""

from __future__ import annotations

from random import Random

from diana.stores.lock import fork_safe_lock

MOST_OWED = 32.0
"""What others may owe before `last` is shed."""


class Choice:
    def __init__(self, chance: Random | None = None) -> None:
        self._chance = chance or Random()  # noqa: S311  # no secret
        self._owed = 0.0
        self._lock = fork_safe_lock()

    def picks(self, reject: int, is_last: bool) -> bool:
        """Whether this one is rejected, of requests of which `reject` percent are to be."""
        dice = self._chance.random()
        with self._lock:
            owed = self._owed + reject / 100
            picked = owed > MOST_OWED if is_last else dice < owed
            self._owed = owed - 1.0 if picked else owed
        return picked

    def retry_after(self, shortest: int, longest: int) -> int:
        return self._chance.randint(shortest, longest)

    def forgive(self) -> None:
        """A level was left: what was owed under it is not the next one's."""
        with self._lock:
            self._owed = 0.0
