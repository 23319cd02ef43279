"""`make fuzz` (ARGS="--minutes 30 --seed 7"): random histories on all back ends, where every field of every decision must agree.

    make fuzz                                        five minutes, from a new seed
    make fuzz ARGS="--minutes 30 --seed 7"
    make fuzz ARGS="--seed 7 --history 123"          this one again, and made shorter if it fails
    make fuzz ARGS="--seed 7 --real-time 2"          this batch without a fake clock again

Each history is made from the seed and its number. One that fails is made shorter and printed, as code that runs it again. At the
end stands how much was compared. It ends with 0 if nothing was found, else with 1.
"""

from __future__ import annotations

import argparse
import sys
from itertools import count
from secrets import randbelow
from time import monotonic

from tests.fuzz.session import Failure, RealTimeFailure, Session, session
from tests.servers.programs import PROGRAMS
from tests.servers.running import running

MOST_FAILURES = 5
TOLD_SECONDS = 60
BETWEEN = 1_500
"""Histories with a fake clock after each batch in real time: about a tenth of the time goes to batches."""


def main() -> int:
    options = _options().parse_args()
    print(f"fuzzing with --seed {options.seed}", flush=True)
    with running(PROGRAMS) as servers, session(servers) as opened:
        if options.history is not None:
            failures = _told(opened.run(options.seed, options.history))
        elif options.real_time is not None:
            failures = _told(opened.run_in_real_time(options.seed, options.real_time))
        else:
            failures = _run(opened, options.seed, 60 * options.minutes)
        print(opened.back_ends.report())
    print(f"{failures} failures, {opened.invalid} histories that could not be run")
    return 1 if failures else 0


def _run(opened: Session, seed: int, seconds: float) -> int:
    """How many failed."""
    begin = told = monotonic()
    failures = 0
    for batch in count():
        if monotonic() - begin > seconds or failures >= MOST_FAILURES:
            break
        failures += _told(opened.run_in_real_time(seed, batch))
        for number in range(batch * BETWEEN, (batch + 1) * BETWEEN):
            if monotonic() - begin > seconds or failures >= MOST_FAILURES:
                break
            failures += _told(opened.run(seed, number))
        if monotonic() - told > TOLD_SECONDS:
            told = monotonic()
            done = (batch + 1) * BETWEEN
            print(f"{done:,} histories in {told - begin:.0f} s", flush=True)
    return failures


def _told(failure: Failure | RealTimeFailure | None) -> int:
    if failure is None:
        return 0
    print(failure, flush=True)
    return 1


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="make fuzz", description=(__doc__ or "").split("\n")[0])
    options.add_argument("--minutes", type=float, default=5.0, help="for how long")
    options.add_argument(
        "--seed", type=int, default=randbelow(10**6), help="histories are made from it"
    )
    options.add_argument("--history", type=int, help="run this one alone")
    options.add_argument("--real-time", type=int, help="run this batch without a fake clock alone")
    return options


if __name__ == "__main__":
    sys.exit(main())
