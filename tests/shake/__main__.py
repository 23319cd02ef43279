"""Run tests again and again on a machine that behaves badly, and tell which of them fell.

    python -m tests.shake --seconds 600 tests/gateway

What is not an option of its own is passed on to pytest: with `-n 4` all tests have their turn in about half an hour. Each round is one run
of pytest, in random order by a seed of its own, with a tiny switch interval, beside busy loops. Meanwhile processes are stopped for up to
two seconds and go on: those that run the tests, and the servers that they started.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.shake.load import busy_loops
from tests.shake.pauses import Pauses
from tests.shake.processes import adopt_orphans, children_of, descendants_of, end_all, send

ROOT = Path(__file__).parents[2]


def main() -> int:
    options, passed_on = _options().parse_known_args()
    seeds = random.Random(options.seed)
    adopt_orphans()
    until = _Until(options.seconds)
    fell: Counter[str] = Counter()
    rounds_of: defaultdict[str, list[int]] = defaultdict(list)
    rounds = 0
    print(f"shaking for {options.seconds:g} s with --seed {options.seed}", flush=True)
    try:
        with busy_loops(options.busy), TemporaryDirectory(prefix="diana-shake-") as folder:
            while not until.over():
                rounds += 1
                seed = seeds.randrange(10**6)
                for name in _round(seed, passed_on, Path(folder), until, options.verbose):
                    fell[name] += 1
                    rounds_of[name].append(seed)
    finally:
        end_all(children_of())
    print(f"\n{rounds} rounds, {len(fell)} tests fell")
    for name, count in fell.most_common():
        print(f"{count:4} × {name}  (seeds {', '.join(map(str, rounds_of[name][:5]))})")
    return 1 if fell or until.interrupted else 0


class _Until:
    """The end of the time, or a signal. Not an exception, which could strike where nothing is ready for it."""

    def __init__(self, seconds: float) -> None:
        self.interrupted = False
        self._end = time.monotonic() + seconds
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._interrupt)

    def over(self) -> bool:
        return self.interrupted or time.monotonic() > self._end

    def _interrupt(self, *_: object) -> None:
        self.interrupted = True


def _round(
    seed: int, passed_on: list[str], folder: Path, until: _Until, verbose: bool
) -> list[str]:
    """The tests that fell."""
    names, log = folder / "fell", folder / "log"
    names.write_text("")
    plugin = ["-p", "tests.shake.plugin", f"--shake-seed={seed}", f"--shake-fell={names}"]
    # What needs the machine to itself falls here as a matter of course.
    command = [sys.executable, "-m", "pytest", *plugin, "-m", "not alone", "-p", "no:cacheprovider"]
    command += passed_on
    begin = time.monotonic()
    with log.open("w") as output:
        pytest = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    with Pauses(pytest.pid, seed) as pauses:
        while pytest.poll() is None and not until.over():
            time.sleep(0.05)
        if pytest.returncode is None:
            pauses.stop()
            send(pytest.pid, signal.SIGSTOP)  # now it starts nothing more
            below = descendants_of(pytest.pid)
            pytest.kill()
            pytest.wait()
            end_all(below)
    said = log.read_text(errors="replace").strip()
    fell = names.read_text().splitlines()
    closing = said.splitlines()[-1] if said else ""
    if until.over():
        closing = "ended before it was done"
    elif pytest.returncode not in (0, 1):
        fell.append(f"(pytest ended with {pytest.returncode}: {closing})")
    print(f"seed {seed}: {closing} ({time.monotonic() - begin:.0f} s, {pauses.count} pauses)")
    if fell and verbose:
        print(said)
    sys.stdout.flush()
    return fell


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("make shake", description=__doc__, add_help=True)
    parser.add_argument("--seconds", type=float, default=1_800, help="for how long (1800)")
    parser.add_argument("--busy", type=int, default=2, help="how many busy loops run beside (2)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="of the rounds' seeds (random)"
    )
    parser.add_argument("--verbose", action="store_true", help="show all that pytest says")
    return parser


if __name__ == "__main__":
    sys.exit(main())
