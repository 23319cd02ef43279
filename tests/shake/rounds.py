"""One round: a run of pytest that is disturbed, and what came of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.shake.pauses import Pauses
from tests.shake.processes import descendants_of, end_all, send

ROOT = Path(__file__).parents[2]
_NOTHING_TO_RUN = (4, 5)
"""How pytest ends if it does not understand what it is asked for, and if there is no such test."""


@dataclass(frozen=True)
class Round:
    seed: int
    status: int | None
    """Of pytest; None if it was ended before it was done."""
    run: int
    """How many tests had their turn."""
    fell: list[str]
    said: str
    seconds: float
    pauses: int

    @property
    def whole(self) -> bool:
        return self.status is not None

    @property
    def empty(self) -> bool:
        return self.status in _NOTHING_TO_RUN

    def __str__(self) -> str:
        closing = self.said.rpartition("\n")[2] if self.whole else "ended before it was done"
        return f"seed {self.seed}: {closing} ({self.seconds:.0f} s, {self.pauses} pauses)"


def run_round(seed: int, passed_on: list[str], folder: Path, is_over: Callable[[], bool]) -> Round:
    record, log = folder / "record", folder / "log"
    record.write_text("")
    plugin = ["-p", "tests.shake.plugin", f"--shake-seed={seed}", f"--shake-record={record}"]
    # What needs the machine to itself falls here as a matter of course.
    command = [sys.executable, "-m", "pytest", *plugin, "-m", "not alone", "-p", "no:cacheprovider"]
    begin = time.monotonic()
    with log.open("w") as output:
        pytest = subprocess.Popen(
            [*command, *passed_on],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us, who end it
        )
    with Pauses(pytest.pid, seed) as pauses:
        while pytest.poll() is None and not is_over():
            time.sleep(0.05)
        status = pytest.returncode
        if status is None:
            pauses.stop()
            send(pytest.pid, signal.SIGSTOP)  # now it starts nothing more
            below = descendants_of(pytest.pid)
            pytest.kill()
            pytest.wait()
            end_all(below)
        elif is_over():
            status = None  # what ended us may have struck it as well, before it was in its session
    lines = [line.partition(" ") for line in record.read_text().splitlines()]
    fell = {name: None for what, _, name in lines if what == "fell"}
    if status and not fell:
        fell[f"(pytest ended with {status})"] = None
    return Round(
        seed=seed,
        status=status,
        run=len({name for _, _, name in lines}),
        fell=list(fell),
        said=log.read_text(errors="replace").strip(),
        seconds=time.monotonic() - begin,
        pauses=pauses.count,
    )
