"""Run the races, print one table.

A new race is a file in this folder with `run(quick: bool) -> Section`, and one line in RACES.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from benchmarks.report import Section, json_from_sections, text_from_sections
from benchmarks.results import keep_in_results

RACES = {
    "local": "one decision in memory, against a hand-written bucket and other libraries",
    "native": "counting in C, in memory and in shared memory; needs a C compiler",
    "places": "taking a place and giving it back, in memory and through a server",
    "threads": "do eight threads ever get more than the limit?",
    "rules": "matching and checking a request by a rules file",
    "shedding": "load shedding: a request while nothing is shed, and measuring",
    "fleet": "decisions through a server: one by one, and of many tasks together",
    "crowd": "many threads and bursts of tasks on one server",
    "leases": "permits that are leased: what a decision costs, and what a fleet uses of its limit",
    "loss": "how long requests are held when the store is lost, and what a fleet admits meanwhile",
    "gateway": "the gateway against a bare pass-through of itself; needs wrk",
    "nginx": "limiting in nginx: bare, limit_req, Lua with local rules and with Redis; needs wrk",
    "attacks": "what attackers cost the gateway, and what other clients notice",
    "swap": "ten thousand rules changed while requests are served",
    "web": "a web application bare and behind limiters, in memory and on Redis; needs wrk",
    "footprint": "bytes per key, and the time of `import diana`",
}


def main() -> None:
    wanted = _parser().parse_args()
    sections = [_run(name, wanted.quick) for name in _in_order(wanted.races)]
    print(text_from_sections(sections))
    if wanted.json:
        figures = json.dumps(json_from_sections(sections), indent=2, ensure_ascii=False)
        wanted.json.write_text(figures + "\n", encoding="utf-8")
    if wanted.write:
        keep_in_results(sections, order=list(RACES))


def _parser() -> argparse.ArgumentParser:
    races = "\n".join(f"  {name:12}{what}" for name, what in RACES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Diana and print one table. These are figures, not tests: a missed goal is shown, and the exit code is 0.",
        epilog=f"races:\n{races}\n\nRun it from the root of the repository, with the dependency group `bench` installed.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "races", nargs="*", type=_race, metavar="RACE", help="which to run (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="a rough look in a few seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument(
        "--write",
        action="store_true",
        help="also put them into benchmarks/RESULTS.md; the sections of other races stay",
    )
    return parser


def _race(name: str) -> str:
    # Not `choices`: before Python 3.12 it refuses the empty list.
    if name not in RACES:
        raise argparse.ArgumentTypeError(f"no race {name!r}; there are {', '.join(RACES)}")
    return name


def _in_order(names: Sequence[str]) -> list[str]:
    return [name for name in RACES if name in names or not names]


def _run(name: str, quick: bool) -> Section:
    # Imported only when wanted: a race may need packages that the others do without.
    print(f"{name} …", file=sys.stderr, flush=True)
    return cast("Section", import_module(f"benchmarks.{name}").run(quick))


if __name__ == "__main__":
    main()
