"""Defects that are being fixed on other branches: what the fuzzer must not report until then. An entry goes with its fix."""

from __future__ import annotations

from tests.fuzz.back_ends import BackEnd
from tests.fuzz.stepped_clock import SteppedClock


class Known:
    """Of one history."""

    def __init__(self, clock: SteppedClock) -> None:
        self._clock = clock
        self._not_stamped: set[str] = set()

    def excuses(self, back_end: BackEnd, hits: int, expected: object, said: object) -> bool:
        """The deny cache of a node says old numbers of the limits beside the one that denies, and stamps none of them anew."""
        if back_end.deny_cache_hits() > hits:
            if self._clock.steps_back:
                self._not_stamped.add(back_end.name)
            return bool(expected) == bool(said)
        return back_end.name in self._not_stamped
