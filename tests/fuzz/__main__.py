"""`make fuzz` (ARGS="--minutes 30 --seed 7"): random histories on all back ends, where every field of every decision must agree.

    make fuzz                                        five minutes, from a new seed
    make fuzz ARGS="--minutes 30 --seed 7"
    make fuzz ARGS="--seed 7 --history 123"          this one again, and made shorter if it fails

Each history is made from the seed and its number. One that fails is made shorter and printed, as code that runs it again. At the
end stands how much was compared. It ends with 0 if nothing was found, else with 1.
"""

from __future__ import annotations

import argparse
import sys
from secrets import randbelow
from time import monotonic

from tests.fuzz.session import Failure, Session, session
from tests.servers.programs import PROGRAMS
from tests.servers.running import running

MOST_FAILURES = 5
TOLD_SECONDS = 60


def main() -> int:
    options = _options().parse_args()
    print(f"fuzzing with --seed {options.seed}", flush=True)
    with running(PROGRAMS) as servers, session(servers) as opened:
        if options.history is None:
            failures = _run(opened, options.seed, 60 * options.minutes)
        else:
            failures = _told([opened.run(options.seed, options.history)])
        print(opened.back_ends.report())
    print(f"{len(failures)} failures, {opened.invalid} histories that could not be run")
    return 1 if failures else 0


def _run(opened: Session, seed: int, seconds: float) -> list[Failure]:
    begin = told = monotonic()
    failures: list[Failure] = []
    number = 0
    while monotonic() - begin < seconds and len(failures) < MOST_FAILURES:
        failures += _told([opened.run(seed, number)])
        number += 1
        if monotonic() - told > TOLD_SECONDS:
            told = monotonic()
            print(f"{number:,} histories in {told - begin:.0f} s", flush=True)
    return failures


def _told(failures: list[Failure | None]) -> list[Failure]:
    found = [failure for failure in failures if failure is not None]
    for failure in found:
        print(failure, flush=True)
    return found


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="make fuzz", description=(__doc__ or "").split("\n")[0])
    options.add_argument("--minutes", type=float, default=5.0, help="for how long")
    options.add_argument(
        "--seed", type=int, default=randbelow(10**6), help="histories are made from it"
    )
    options.add_argument("--history", type=int, help="run this one alone")
    return options


if __name__ == "__main__":
    sys.exit(main())
