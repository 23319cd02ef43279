"""A process that takes from a zone: `python worker.py NAME CODE LIMIT KEYS TAKES`. It says how much passed of each key."""

from __future__ import annotations

import sys
from typing import Any

from diana import Limiter
from diana.testing.fake_clock import FakeClock
from tests.stores.native.opened import BEGIN_US

OPTIONS: dict[str, dict[str, Any]] = {"LB": {"nodelay": True}}


def limiter(name: str, code: str, limit: int) -> Limiter:
    """So many at once: time stands still."""
    options = dict(OPTIONS.get(code, {}))
    if code == "LB":
        options["burst"] = limit - 1
    return Limiter(
        f"{limit}/day",
        algo=code,
        store=f"shared://{name}",
        name="race",
        clock=FakeClock(BEGIN_US),
        **options,
    )


def main(name: str, code: str, limit: str, keys: str, takes: str) -> None:
    take = limiter(name, code, int(limit)).take
    names = [f"key {number}" for number in range(int(keys))]
    passed = 0
    print("ready", flush=True)
    sys.stdin.readline()
    for step in range(int(takes)):
        passed += bool(take(names[step % len(names)]))
    print(passed, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
