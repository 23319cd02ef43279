"""One factor of the rules file: sampled, smoothed, at a level.

A level is reached at its `above` and left only clearly below it.

value
 90 ┤        ╭──╮                level 2 is reached at 90
 85 ┤───────╱────╲─────────      … and left at 85
 80 ┤    ╭─╯      ╰╮             level 1 is reached at 80
 75 ┤───╱──────────╲───────      … and left at 75
    └─0─┴─1─┴─2──┴─1─┴─0──▶ time

Smoothing is exponential by time, not by the number of samples: a thread that was late counts its sample for as long as it was away.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from math import exp, isfinite
from typing import NamedTuple

from diana.core.path_readings import PathReading, readings_under_mounts
from diana.core.request import Request
from diana.core.shed_settings import Activity, Level, Sample, Shed, ShedSettings
from diana.shedding.selection import Exemption, ShedSelector

POINTS = 5
SHARE = 0.05


def leave_at(level: Level) -> float:
    """5 points below; of large numbers, as a queue's length, 5 %; and never below half, or a small one could not be left."""
    return level.above - min(max(POINTS, SHARE * level.above), level.above / 2)


def level_after(levels: Sequence[Level], current: int, value: float) -> int:
    """The level that holds at this value, after `current`; 0 is none."""
    reached = sum(value >= level.above for level in levels)
    current = min(current, len(levels))
    while current > reached and value <= leave_at(levels[current - 1]):
        current -= 1
    return max(current, reached)


class Smoothing:
    """The first sample is taken as it is; of a later one, 1 − e^(−Δt/T)."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = 0.0
        self.value: float | None = None

    def add(self, sample: float, at: float) -> float:
        """`at` in seconds, by a clock that never goes back."""
        if self.value is None:
            self.value = sample
        else:
            weight = 1.0 - exp(-max(0.0, at - self._at) / self._seconds)
            self.value += weight * (sample - self.value)
        self._at = at
        return self.value

    def forget(self) -> None:
        self.value = None


log = logging.getLogger("diana")

SHORTEST_RETRY, LONGEST_RETRY = 1, 5
"""Seconds."""


class GaugeState(NamedTuple):
    """What is shown of a factor."""

    factor: str
    value: float | None
    """The last sample; None: it cannot be told."""
    smoothed: float | None
    level: int
    reject: int
    """Percent."""
    unit: str
    problem: str | None
    """Why it cannot be told, if sampling fails."""


class Gauge:
    def __init__(self, line: ShedSettings, mounts: tuple[PathReading, ...]) -> None:
        self.line = line
        self._mounts = mounts
        self._exemption = Exemption(line.exempt, mounts) if line.exempt else None
        self._choice = ShedSelector()
        self._smoothing = Smoothing(line.kind.smoothing_seconds)
        self._sample: Sample | None = None
        self._activity: Activity | None = None
        self._value: float | None = None
        self._problem: str | None = None
        self.level = 0
        self.reject = 0

    def take_over(self, other: Gauge) -> None:
        """What another one has measured of the same thing: a change of levels is no reason to begin anew."""
        self._smoothing, self._value, self._sample = other._smoothing, other._value, other._sample
        self._problem, self._activity = other._problem, other._activity
        if self._smoothing.value is not None:
            # From where it stands: an edit elsewhere in the file must not leave a level that is kept just below its `above`.
            levels = self.line.levels
            if levels == other.line.levels:
                self.level, self.reject, self._choice = other.level, other.reject, other._choice
            self._set_level(level_after(levels, other.level, self._smoothing.value))

    def open(self, activity: Activity) -> None:
        """In the process that measures; done with the next sample, in the thread whose time it may take."""
        self._sample, self._activity = None, activity

    def sample(self, at: float) -> None:
        try:
            if self._sample is None:
                if self._activity is None:
                    return
                self._sample = self.line.open(self._activity)
            value = self._sample()
            if value is not None and not isfinite(value):
                raise ValueError(f"gave {value}")
        except Exception as error:
            self._fail(error)
            return
        if self._problem is not None:
            log.warning("shedding factor %s can be measured again", self.line.name)
            self._problem = None
        self.add(value, at)

    def add(self, value: float | None, at: float) -> None:
        """A sample; what cannot be told rejects nothing."""
        self._value = value
        if value is None:
            self._smoothing.forget()
            self._set_level(0)
        else:
            smoothed = self._smoothing.add(value, at)
            self._set_level(level_after(self.line.levels, self.level, smoothed))

    def exempts(self, request: Request) -> bool:
        return self._exemption is not None and self._exemption.covers(request)

    def shed(self, request: Request) -> Shed | None:
        level, value = self.level, self._smoothing.value
        if not level or value is None:  # left by another thread just now
            return None
        above, reject = self.line.levels[level - 1]
        if not self._choice.picks(reject, partial(self._is_last, request)):
            return None
        retry_after = self._choice.retry_after(SHORTEST_RETRY, LONGEST_RETRY)
        return Shed(self.line.name, level, value, above, reject, retry_after)

    def _is_last(self, request: Request) -> bool:
        last = self.line.last
        if last is None:
            return False
        readings = None
        if any(entry.reads_path for entry in last.entries):
            found = readings_under_mounts(request.path, request.mount, self._mounts)
            readings = () if found is None else found.all
        return last.leaves_alone(request, readings) is not None

    def state(self) -> GaugeState:
        line = self.line
        return GaugeState(
            line.name,
            self._value,
            self._smoothing.value,
            self.level,
            self.reject,
            line.kind.unit,
            self._problem,
        )

    def _fail(self, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        if self._problem is None:
            log.warning("shedding factor %s cannot be measured: %s", self.line.name, message)
        self._problem = message
        self.add(None, 0.0)

    def _set_level(self, level: int) -> None:
        if level == self.level:
            return
        if level < self.level:
            self._choice.forgive()
        self.level = level
        self.reject = self.line.levels[level - 1].reject if level else 0
        value = self._smoothing.value
        shown = "" if value is None else f" at {value:.4g}{self.line.kind.unit}"
        log.warning(
            "shedding factor %s%s: level %d, rejecting %d %% of requests",
            self.line.name,
            shown,
            level,
            self.reject,
        )
