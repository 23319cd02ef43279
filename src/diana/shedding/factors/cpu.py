"""`cpu`: percent of the processors that are busy; in a container with a quota, percent of that quota."""

from __future__ import annotations

from time import monotonic

import psutil

from diana.core.shed_settings import Activity, Factor, Level, Open, Sample
from diana.shedding.cgroup import Cgroups

LEVELS = (Level(80, 10), Level(90, 30), Level(95, 70))

FIRST_SECONDS = 1.0
"""What a first request starts is no load yet: the first sample is of so long."""

CpuSample = tuple[float, float]
"""What was used, and what there was to use, since some beginning."""


def cpu_sample(groups: Cgroups) -> Sample:
    """Between one call and the next; at first it cannot tell."""
    of, before = _reading(groups)
    began, is_first = monotonic(), True
    last: float | None = None

    def sample() -> float | None:
        nonlocal of, before, began, is_first, last
        if is_first and monotonic() - began < FIRST_SECONDS:
            return None
        kind, now = _reading(groups)
        used, there = (after - then for after, then in zip(now, before, strict=True))
        if kind != of:  # the quota was changed meanwhile
            of, before, began, is_first, last = kind, now, monotonic(), True, None
            return None
        if there > 0:  # it is counted in hundredths of a second
            before, is_first = now, False
            last = min(100.0, max(0.0, 100.0 * used / there))
        return last

    return sample


def _reading(groups: Cgroups) -> tuple[str, CpuSample]:
    quota = groups.cpu()
    if quota is not None:
        return f"quota {quota.cores:g}", (quota.used_us / 1e6, monotonic() * quota.cores)
    times = psutil.cpu_times()._asdict()
    # Guests are part of `user` already.
    total = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    idle = times["idle"] + times.get("iowait", 0.0)
    return "machine", (total - idle, total)


def _make() -> Open:
    def open(_: Activity) -> Sample:
        return cpu_sample(Cgroups())

    return open


cpu = Factor(_make, levels=LEVELS, unit="%")
