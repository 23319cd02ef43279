"""Do eight threads ever get more than the limit? Speed without that is no speed.

The interpreter is told to switch threads as often as it can, which finds in a second what production finds on a bad day.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Barrier, Thread

import limits
import limits.storage
import limits.strategies
import pyrate_limiter
import throttled

from benchmarks.local import BucketPerKey
from benchmarks.report import Figure, Section, at_most
from diana import Limiter

LIMIT = 20
THREADS = 8

Take = Callable[[str], bool]


def run(quick: bool) -> Section:
    keys = 100 if quick else 800
    figures = [_figure(name, make(), keys) for name, make in CONTESTANTS.items()]
    return Section(
        name="threads",
        title="more than the limit",
        how=f"{THREADS} threads ask for each of {keys} keys {LIMIT} times, limit {LIMIT} per hour, switching as often as possible. "
        "The figure is how many passed that should not have, over all keys; any is too many.",
        figures=figures,
        libraries=("diana-limiter", "limits", "throttled-py", "pyrate-limiter"),
        quick=quick,
    )


def _figure(name: str, take: Take, keys: int) -> Figure:
    excess = sum(max(0, _admitted(take, f"key {number}") - LIMIT) for number in range(keys))
    goals = (at_most(excess, 0, "too many"),) if name.startswith("Diana") else ()
    return Figure(name, excess, "too many", goals=goals)


def _admitted(take: Take, key: str) -> int:
    passed = [0] * THREADS
    start = Barrier(THREADS)

    def push(number: int) -> None:
        start.wait()
        passed[number] = sum(take(key) for _ in range(LIMIT))

    with _switching_often():
        threads = [Thread(target=push, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(passed)


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _diana(algo: str) -> Take:
    limiter = Limiter(f"{LIMIT}/hour", algo=algo, burst=LIMIT - 1 if algo == "LB" else None)
    return lambda key: bool(limiter.take(key))


def _limits() -> Take:
    limiter = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    return partial(limiter.hit, limits.RateLimitItemPerHour(LIMIT))


def _throttled(algorithm: str) -> Take:
    quota = throttled.per_hour(LIMIT)
    store = throttled.MemoryStore(options={"MAX_SIZE": 10_000})
    limiter = throttled.Throttled(using=algorithm, quota=quota, store=store)
    return lambda key: not limiter.limit(key).limited


def _pyrate_limiter() -> Take:
    rate = pyrate_limiter.Rate(LIMIT, pyrate_limiter.Duration.HOUR)
    limiter = pyrate_limiter.Limiter(BucketPerKey(rate))
    return lambda key: bool(limiter.try_acquire(key, blocking=False))


CONTESTANTS: dict[str, Callable[[], Take]] = {
    **{f"Diana {algo}": partial(_diana, algo) for algo in ("TB", "LB", "W", "SW", "SL")},
    "limits, fixed window": _limits,
    "throttled-py, token bucket": partial(_throttled, "token_bucket"),
    "throttled-py, fixed window": partial(_throttled, "fixed_window"),
    "pyrate-limiter, token bucket": _pyrate_limiter,
}
