"""The processes below one of ours, by what Linux tells of them in /proc."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """What our children leave behind becomes a child of ours, so that we can end it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of(parent: int | None = None) -> list[int]:
    """Of this process, if none is named."""
    wanted = os.getpid() if parent is None else parent
    return [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == wanted
    ]


def descendants_of(parent: int) -> list[int]:
    found = []
    for child in children_of(parent):
        found += [child, *descendants_of(child)]
    return found


def state_of(pid: int) -> str:
    """A letter: T is stopped, Z is dead; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def identity_of(pid: int) -> str:
    """Its number, and when it began: a number is given to another process soon where there are few of them. Empty if there is none."""
    try:
        return f"{pid} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except OSError:
        return ""


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def end_all(pids: Iterable[int]) -> None:
    """Kill them, with all below them and what they leave behind, and see them dead."""
    ours, ended = set(pids), set[int]()
    while ours:
        for pid in list(ours):
            ours.update(descendants_of(pid))
        for pid in ours:
            send(pid, signal.SIGKILL)
        ended |= ours
        ours = {pid for pid in ours if state_of(pid) not in ("", "Z")}
        time.sleep(0.01)
    _collect(ended)  # now that all are dead: those whose parents died before them are ours


def _collect(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
