"""`loop_lag`: how long the event loop takes until it runs what is ready, in ms. Not available where no loop serves.

Measured from outside: the thread asks the loop to note the time, and looks the next time. A loop that is still busy by then has that much
lag already. A timer in the loop would measure the same, but keep an otherwise idle loop busy, and tell nothing while it stands still.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from diana.core.shed_settings import Activity, Factor, Level, Open, Sample

LEVELS = (Level(100, 10), Level(250, 30), Level(1_000, 70))


class LoopLag:
    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._asked: LagProbe | None = None

    def __call__(self) -> float | None:
        loop, asked = self._activity.loop, self._asked
        if loop is None or not loop.is_running():
            self._asked = None
            return None
        if asked is None or asked.loop is not loop:
            self._ask(loop)
            return None
        if asked.answered is None:
            return (perf_counter() - asked.at) * 1_000
        self._ask(loop)
        return (asked.answered - asked.at) * 1_000

    def _ask(self, loop: Any) -> None:
        self._asked = None
        asked = LagProbe(loop)
        try:
            loop.call_soon_threadsafe(asked.answer)
        except RuntimeError:
            return  # closed just now
        self._asked = asked


class LagProbe:
    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.at = perf_counter()
        self.answered: float | None = None

    def answer(self) -> None:
        self.answered = perf_counter()


def _make() -> Open:
    def open(activity: Activity) -> Sample:
        return LoopLag(activity)

    return open


loop_lag = Factor(
    _make,
    levels=LEVELS,
    unit=" ms",
    smoothing_seconds=2.0,
    of_process=True,
    needs_activity=True,
)
