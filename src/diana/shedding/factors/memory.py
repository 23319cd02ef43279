"""`memory`: percent of the machine's memory that is in use; in a container with a limit, percent of that limit.

`process_memory`: the memory of this process alone, in percent of the container's limit, or else of the machine's memory.
"""

from __future__ import annotations

import psutil

from diana.core.shed_settings import Activity, Factor, Level, Open, Sample
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


PROCESS_MEMORY_LEVELS = (Level(80, 10), Level(90, 30), Level(95, 70))


def process_memory_sample(groups: Cgroups) -> Sample:
    process = psutil.Process()
    total = psutil.virtual_memory().total

    def sample() -> float:
        use = groups.memory()
        limit = total if use is None else min(use.limit, total)
        return float(100 * process.memory_info().rss / limit)

    return sample


def _open_process_memory() -> Open:
    def open(_: Activity) -> Sample:
        return process_memory_sample(Cgroups())

    return open


process_memory = Factor(
    _open_process_memory, levels=PROCESS_MEMORY_LEVELS, unit="%", of_process=True
)
