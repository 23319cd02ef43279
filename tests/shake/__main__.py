"""Run tests again and again on a machine that behaves badly, and tell which of them fell.

  make shake                                       the whole suite by four workers, for half an hour
  make shake ARGS="--seconds 600 tests/gateway"    what you name; it goes to pytest, with all options
                                                   that are not among those below

Each round is one run of pytest, in random order by a seed of its own, with a tiny switch interval,
beside busy loops. Meanwhile processes are stopped for up to two seconds and go on: those that run the
tests, and the servers that they started. Tests marked `alone` are left out.

It ends with 0 if every test had its turn and none fell, with 1 if one fell, if the time was too
short for a whole round, or on a signal, with 2 if there is nothing to run.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.shake.load import busy_loops
from tests.shake.processes import adopt_orphans, children_of, end_all
from tests.shake.rounds import Round, run_round


def main() -> int:
    options, passed_on = _options().parse_known_args()
    seeds = random.Random(options.seed)
    adopt_orphans()
    until = _Until(options.seconds)
    rounds: list[Round] = []
    print(f"shaking for {options.seconds:g} s with --seed {options.seed}", flush=True)
    try:
        with busy_loops(options.busy), TemporaryDirectory(prefix="diana-shake-") as folder:
            while not until.over() and len(rounds) != options.rounds:
                done = run_round(seeds.randrange(10**6), passed_on, Path(folder), until.over)
                if done.empty:
                    print(done.said, file=sys.stderr)
                    return 2
                print(done, flush=True)
                if options.verbose and done.fell:
                    print(done.said, flush=True)
                rounds.append(done)
    finally:
        end_all(children_of())
    _tell(rounds)
    if not any(done.whole for done in rounds):
        print("There was no time for a whole round: not every test had its turn.")
        return 1
    return 1 if until.interrupted or any(done.fell for done in rounds) else 0


def _tell(rounds: list[Round]) -> None:
    seeds_of: defaultdict[str, list[int]] = defaultdict(list)
    for done in rounds:
        for name in done.fell:
            seeds_of[name].append(done.seed)
    whole, run = sum(done.whole for done in rounds), sum(done.run for done in rounds)
    print(f"\nwhole rounds: {whole}, tests run: {run}, tests that fell: {len(seeds_of)}")
    for name, seeds in sorted(seeds_of.items(), key=lambda item: -len(item[1])):
        print(f"{len(seeds):4} × {name}  (seeds {', '.join(map(str, seeds[:5]))})")


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


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "make shake",
        usage="make shake ARGS='[options] [paths and options of pytest]'",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--seconds", type=_seconds, default=1_800, help="for how long (1800)")
    parser.add_argument("--rounds", type=_count, help="at most so many (as the time allows)")
    parser.add_argument("--busy", type=_count, default=2, help="how many busy loops run beside (2)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="of the rounds' seeds (random)"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show all that pytest says of a round that fell"
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no length of time: give seconds above 0")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"{text} is no number of them: give 0 or more")
    return count


if __name__ == "__main__":
    sys.exit(main())
