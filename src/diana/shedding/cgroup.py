"""What a container may use: the limits of cgroups, version 1 and 2, read where Linux shows them.

A process is in a group, which is in others up to the root, and each may have a limit: the tightest counts. In a container the path in
`/proc/self/cgroup` may be the host's, while only the container's own folder is mounted; then that one is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

UNLIMITED = 1 << 60
"""Version 1 writes no limit as a number near 2**63."""
LOOK_SECONDS = 30.0
"""Which groups have a limit is looked for once in so long: most have none, and there are many files to find that out."""


class CpuQuota(NamedTuple):
    cores: float
    used_us: int
    """Since the group was made."""


class MemoryUse(NamedTuple):
    used: int
    """Bytes, without files in the page cache that can be dropped."""
    limit: int


class Cgroups:
    def __init__(
        self, membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._membership = membership
        self._root = root
        self._look_again = 0.0
        self._quotas: list[Callable[[], CpuQuota | None]] = []
        self._limits: list[Callable[[], MemoryUse | None]] = []

    def cpu(self) -> CpuQuota | None:
        """None: without a quota."""
        self._look()
        return min(filter(None, (read() for read in self._quotas)), default=None)

    def memory(self) -> MemoryUse | None:
        """None: without a limit."""
        self._look()
        found = filter(None, (read() for read in self._limits))
        return max(found, key=lambda use: use.used / use.limit, default=None)

    def _look(self) -> None:
        if monotonic() < self._look_again:
            return
        self._look_again = monotonic() + LOOK_SECONDS
        # Version 1 may count in another hierarchy than the one that limits.
        counted = zip(self._folders("cpu"), self._folders("cpuacct"), strict=False)
        quotas = [partial(_quota_2, folder) for folder in self._folders("")]
        quotas += [partial(_quota_1, *folders) for folders in counted]
        limits = [partial(_memory_2, folder) for folder in self._folders("")]
        limits += [partial(_memory_1, folder) for folder in self._folders("memory")]
        self._quotas = [read for read in quotas if read() is not None]
        self._limits = [read for read in limits if read() is not None]

    def _folders(self, controller: str) -> Iterator[Path]:
        """Of this process' group and those that it is in; of version 1 by controller, of version 2 by an empty one."""
        for line in _lines(self._membership):
            _, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            if controller in names.split(","):
                mounts = [self._root / names, self._root / controller] if controller else []
                mounts = mounts or [self._root, self._root / "unified"]
                base = next((mount for mount in mounts if mount.is_dir()), None)
                if base is not None:
                    own = base / path.strip().lstrip("/")
                    own = own if own.is_dir() and ".." not in own.parts else base
                    yield own
                    yield from (up for up in own.parents if up == base or base in up.parents)


def _quota_2(folder: Path) -> CpuQuota | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    used = _named(folder / "cpu.stat", "usage_usec")
    return _quota(quota, period, used)


def _quota_1(folder: Path, counting: Path) -> CpuQuota | None:
    quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    used_ns = _text(counting / "cpuacct.usage")
    return _quota(quota, period, int(used_ns) // 1_000 if used_ns.isdigit() else None)


def _quota(quota: str, period: str, used_us: int | None) -> CpuQuota | None:
    if not quota.isdigit() or not period.isdigit() or used_us is None or not int(period):
        return None
    return CpuQuota(int(quota) / int(period), used_us) if int(quota) else None


def _memory_2(folder: Path) -> MemoryUse | None:
    cached = _named(folder / "memory.stat", "inactive_file")
    return _memory(folder / "memory.max", folder / "memory.current", cached)


def _memory_1(folder: Path) -> MemoryUse | None:
    cached = _named(folder / "memory.stat", "total_inactive_file")
    return _memory(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes", cached)


def _memory(limit_file: Path, used_file: Path, cached: int | None) -> MemoryUse | None:
    limit, used = _text(limit_file), _text(used_file)
    if not limit.isdigit() or not used.isdigit() or not 0 < int(limit) < UNLIMITED:
        return None
    return MemoryUse(max(0, int(used) - (cached or 0)), int(limit))


def _named(path: Path, name: str) -> int | None:
    for line in _lines(path):
        word, _, number = line.partition(" ")
        if word == name and number.strip().isdigit():
            return int(number)
    return None


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text(encoding="ascii").strip()
    return ""
