"""Processes that take all the processor they can get."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self


class BusyLoops:
    def __init__(self, count: int) -> None:
        self._count = count
        self._loops: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._loops.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for loop in self._loops:
            loop.kill()
            loop.wait()
