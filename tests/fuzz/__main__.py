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

from tests.fuzz.back_ends import Tally
from tests.fuzz.session import Failure, RealTimeFailure, Session, session
from tests.servers.programs import PROGRAMS
from tests.servers.running import running
from tests.servers.server import Server

MOST_FAILURES = 5
BETWEEN = 1_500
"""Histories with a fake clock after each batch in real time: about a tenth of the time goes to batches."""


def main() -> int:
    options = _options().parse_args()
    print(f"fuzzing with --seed {options.seed}", flush=True)
    tally = Tally()
    with running(PROGRAMS) as servers:
        if options.history is None and options.real_time is None:
            failures = _run(servers, tally, options.seed, 60 * options.minutes)
        else:
            with session(servers, tally) as opened:
                failures = _run_one(opened, options.seed, options.history, options.real_time)
    print(tally)
    print(f"{failures} failures")
    return 1 if failures else 0


def _run_one(opened: Session, seed: int, history: int | None, batch: int | None) -> int:
    if history is not None:
        return _told(opened.run(seed, history))
    return _told(opened.run_in_real_time(seed, batch or 0))


def _run(servers: dict[str, Server], tally: Tally, seed: int, seconds: float) -> int:
    """How many failed. Stores are opened anew for each batch: they keep what they know of limits, and each history has its own."""
    begin = monotonic()
    failures = 0
    for batch in count():
        with session(servers, tally) as opened:
            failures += _told(opened.run_in_real_time(seed, batch))
            for number in range(batch * BETWEEN, (batch + 1) * BETWEEN):
                if monotonic() - begin > seconds or failures >= MOST_FAILURES:
                    return failures
                failures += _told(opened.run(seed, number))
        print(f"{number + 1:,} histories in {monotonic() - begin:.0f} s", flush=True)
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
