"""`process_memory`: what this process alone holds, in percent of the container's limit, or else of the machine's memory."""

from __future__ import annotations

import psutil

from diana.core.shed import Activity, Factor, Level, Open, Sample
from diana.shedding.cgroup import Cgroups

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
