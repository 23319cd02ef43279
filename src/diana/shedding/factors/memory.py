"""`memory`: percent of the machine's memory that is in use; in a container with a limit, percent of that limit."""

from __future__ import annotations

import psutil

from diana.core.shed import Activity, Factor, Level, Open, Sample
from diana.shedding.cgroup import Cgroups

MEMORY_LEVELS = (Level(90, 10), Level(95, 30), Level(98, 70))


def memory_sample(groups: Cgroups) -> Sample:
    def sample() -> float:
        use = groups.memory()
        machine = psutil.virtual_memory()
        if use is None or use.limit >= machine.total:
            return float(machine.percent)
        return 100.0 * use.used / use.limit

    return sample


def _open_memory() -> Open:
    def open(_: Activity) -> Sample:
        return memory_sample(Cgroups())

    return open


memory = Factor(_open_memory, levels=MEMORY_LEVELS, unit="%")
