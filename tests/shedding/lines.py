"""Factors for tests: what they measure is set by hand, everything else is as in a server."""

from __future__ import annotations

from typing import Any

from diana import Guard, Policy
from diana.core.policy import Settings
from diana.core.shed_settings import Activity, Factor, Level, Open, Sample, ShedSettings
from diana.rules.loading import rules_from_bytes
from diana.shedding.gauge import GaugeState
from tests.servers.waiting import until

CPU_LEVELS = (Level(80, 10), Level(90, 30), Level(95, 70))
ONE_RULE = b"limits: [{url: /, rules: [{unit: hour, rpu: 1000000}]}]"


class Dial:
    """A factor that is what it is set to."""

    def __init__(self, value: float | None = None) -> None:
        self.value = value
        self.opened = 0

    def __call__(self) -> float | None:
        return self.value

    def open(self, _: Activity) -> Sample:
        self.opened += 1
        return self

    def make(self, **_: Any) -> Open:
        return self.open


def line(
    dial: Dial,
    levels: tuple[Level, ...] = CPU_LEVELS,
    name: str = "dial",
    like: bytes | None = None,
    **fields: Any,
) -> ShedSettings:
    """A line of `shed`; `except` and `last` are those that a rules file says for cpu."""
    kind = Factor(dial.make, levels=levels, unit="%", **fields)
    written = ShedSettings(name, kind, {}, levels, dial.open)
    if like is None:
        return written
    (read,) = rules_from_bytes(b"shed: [{factor: cpu, " + like + b"}]\n" + ONE_RULE).settings.shed
    return written._replace(exempt=read.exempt, last=read.last)


def policy(*lines: ShedSettings, rules: bytes = ONE_RULE) -> Policy:
    read = rules_from_bytes(rules)
    settings = Settings(shed=lines, mounts=read.settings.mounts, answer=read.settings.answer)
    return Policy(read.rules, settings=settings, version="1")


def state(guard: Guard, factor: str = "dial") -> GaugeState:
    return next(state for state in guard.factors if state.factor == factor)


def at_level(guard: Guard, level: int, factor: str = "dial") -> None:
    until(lambda: state(guard, factor).level == level, f"{factor} is at level {level}", within=60)
