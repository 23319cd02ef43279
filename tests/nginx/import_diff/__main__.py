"""`make import-diff` (ARGS="--count 1000 --seed 7"): the real nginx beside imported rules; exits with 1 if they differ without a note."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from os import cpu_count

from tests.nginx.import_diff.comparison import Totals, compare

MOST_SHOWN = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000, help="how many configurations")
    parser.add_argument("--seed", type=int, default=1, help="of the first one")
    chosen = parser.parse_args()
    began = time.monotonic()
    with ProcessPoolExecutor(cpu_count()) as pool:
        seeds = range(chosen.seed, chosen.seed + chosen.count)
        totals = Totals(pool.map(compare, seeds, chunksize=10))
    for wrong in totals.wrong[:MOST_SHOWN]:
        print(wrong, end="\n\n")
    print(f"{totals}; {time.monotonic() - began:.0f} s")
    return 1 if totals.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
