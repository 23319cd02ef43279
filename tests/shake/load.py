"""Processes that take all the processor they can get."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOOP = "print(flush=True)\nwhile True: pass"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """All of them run when it is entered."""
    loops: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-I", "-S", "-c", LOOP]
    try:
        for _ in range(count):
            # In a session of its own: Ctrl-C is for the one who ends it.
            loop = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            loops.append(loop)
        for loop in loops:
            assert loop.stdout is not None
            assert loop.stdout.readline() == b"\n"
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()
