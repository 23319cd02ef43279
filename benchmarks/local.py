"""One decision in memory: Diana, a bucket written by hand, and the libraries people use today.

Everybody takes a lock, counts by key and is given the same limit, so high that every request passes. It is per minute so that
no window ends with every turn. Each library is called the way its documentation calls it, with the fastest of its algorithms and with its
token bucket if it has one. Left out: pyrate-limiter's log, a fifth faster on a hot key, but it keeps an entry per request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from random import Random
from threading import Lock
from time import monotonic
from typing import NamedTuple

import limits
import limits.storage
import limits.strategies
import pyrate_limiter
import throttled

from benchmarks.race import Contestant, Times, race
from benchmarks.report import Figure, Section, at_least, at_most
from diana import Limiter
from diana.testing import FakeClock

PER_MINUTE = 1_000_000_000
HEAVILY_USED = "1000000000/hour"
"""A bucket that does not run empty between two requests of a hot key: the longer way through the kernel."""
SMALL_LOG = "10000 per 1ms"
"""A log keeps an entry per request, so its window is short."""

LENGTHS = (10, 1_000, 100_000)

HAND_WRITTEN = "hand-written"
ADMIT_TOO_MANY = ("limits, fixed window",)
"""Not thread-safe: see the race `threads`. Shown, but not the one to beat."""
DIANA = "Diana TB"
DIANA_OTHERS = {
    "Diana TB, heavily used": ("TB", HEAVILY_USED),
    "Diana LB": ("LB", f"{PER_MINUTE}/minute"),
    "Diana W": ("W", f"{PER_MINUTE}/minute"),
    "Diana SW": ("SW", f"{PER_MINUTE}/minute"),
    "Diana SL": ("SL", SMALL_LOG),
}


class HandWritten:
    """What one writes on an afternoon: a dictionary, a lock, floats. It forgets nothing, and nothing bounds it."""

    def __init__(self, per_second: float, burst: float) -> None:
        self.per_second = per_second
        self.burst = burst
        self.lock = Lock()
        self.buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, cost: int = 1) -> tuple[bool, float, float]:
        now = monotonic()
        with self.lock:
            bucket = self.buckets.get(key)
            if bucket is None:
                tokens = self.burst
            else:
                tokens, stamp = bucket
                tokens = min(self.burst, tokens + (now - stamp) * self.per_second)
            if tokens >= cost:
                tokens -= cost
                self.buckets[key] = (tokens, now)
                return True, tokens, 0.0
            return False, tokens, (cost - tokens) / self.per_second


class BucketPerKey(pyrate_limiter.BucketFactory):
    """pyrate-limiter asks for this class to be written. Its token bucket has nothing to leak, so no leaking thread is started."""

    def __init__(self, rate: pyrate_limiter.Rate) -> None:
        self._rates = [rate]
        self._clock = pyrate_limiter.MonotonicClock()
        self._buckets: dict[str, pyrate_limiter.AbstractBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> pyrate_limiter.RateItem:
        return pyrate_limiter.RateItem(name, self._clock.now(), weight)

    def get(self, item: pyrate_limiter.RateItem) -> pyrate_limiter.AbstractBucket:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            algorithm = pyrate_limiter.TokenBucket()
            bucket = pyrate_limiter.StateBucket(self._rates, algorithm)
            self._buckets[item.name] = bucket
        return bucket


class Workload(NamedTuple):
    name: str
    keys: Sequence[str]
    turn: int
    rounds: int


def run(quick: bool) -> Section:
    figures = [figure for workload in _workloads(quick) for figure in _raced(workload)]
    figures += _long_logs(quick)
    return Section(
        name="local",
        title="one decision in memory",
        how=_how(quick),
        figures=figures,
        libraries=("diana-limiter", "limits", "throttled-py", "pyrate-limiter"),
        quick=quick,
    )


def _workloads(quick: bool) -> list[Workload]:
    count, turn, rounds = (20_000, 2_000, 20) if quick else (100_000, 5_000, 60)
    keys = [f"user:{number:016d}" for number in range(count)]
    Random(1).shuffle(keys)
    return [
        Workload("many keys", keys, turn, rounds),
        Workload("one hot key", keys[:1] * turn, turn, rounds),
    ]


def _how(quick: bool) -> str:
    many, hot = _workloads(quick)
    return (
        f"Many keys: {len(many.keys):,} keys of {len(many.keys[0])} characters, in shuffled order; {many.rounds} rounds of "
        f"{many.turn:,} decisions each. One hot key: the same with one key, {hot.rounds} rounds. Everything is allowed, under "
        f"{PER_MINUTE:,} per minute (Diana SL: {SMALL_LOG}, so its log is short; heavily used: {HEAVILY_USED}). "
        "Hand-written is a locked bucket of floats in a dictionary that returns a tuple and forgets nothing. Faster than peers means: "
        "than the fastest of them that admits no more than its limit under threads. Sliding log of n: with every request one of n "
        "entries expires and one is added; the time of moving a fake clock is in it."
    )


def _raced(workload: Workload) -> list[Figure]:
    peers = _peers(len(workload.keys))
    contestants = [_hand_written(), *_dianas(), *peers]
    times = race(contestants, workload.keys, turn=workload.turn, rounds=workload.rounds)
    fastest_peer = times.fastest([peer.name for peer in peers if peer.name not in ADMIT_TOO_MANY])
    return [_figure(workload, one.name, times, fastest_peer) for one in contestants]


def _long_logs(quick: bool) -> list[Figure]:
    """A sliding log of so many entries, of which one expires with every request."""
    contestants = [Contestant(f"{length:,}", _long_log(length)) for length in LENGTHS]
    turn, rounds = (200, 30) if quick else (1_000, 60)
    times = race(contestants, ["k"] * turn, turn=turn, rounds=rounds)
    figures = []
    for length in LENGTHS:
        ratio = times.ratio(f"{length:,}")
        goals = (at_most(ratio, 2, "× the shortest"),) if length == LENGTHS[-1] else ()
        what, value = f"sliding log of {length:,}", times.median_us(f"{length:,}")
        figures.append(Figure(what, value, "µs", {"× the shortest": ratio}, goals=goals))
    return figures


def _long_log(length: int) -> Callable[[str], object]:
    clock = FakeClock()
    limiter = Limiter(f"{LENGTHS[-1]} per {length}s", algo="SL", clock=clock)

    def take(key: str) -> object:
        clock.advance(1)
        return limiter.take(key)

    for _ in range(length):
        take("k")
    return take


def _figure(workload: Workload, name: str, times: Times, fastest_peer: str) -> Figure:
    what, value = f"{workload.name}, {name}", times.median_us(name)
    slower = times.ratio(name)
    if not name.startswith("Diana"):
        note = "the fastest thread-safe peer" if name == fastest_peer else ""
        return Figure(what, value, "µs", {"× hand-written": slower}, note)
    faster = times.ratio(fastest_peer, to=name)
    ratios = {"× hand-written": slower, "× faster than thread-safe peers": faster}
    goals = (
        at_most(slower, 1.6, "× hand-written"),
        at_least(faster, 4, "× faster than thread-safe peers"),
    )
    return Figure(what, value, "µs", ratios, goals=goals if name == DIANA else ())


def _hand_written() -> Contestant:
    bucket = HandWritten(per_second=PER_MINUTE / 60, burst=PER_MINUTE)
    return Contestant(HAND_WRITTEN, bucket.take, passed=itemgetter(0))


def _dianas() -> list[Contestant]:
    others = [
        Contestant(name, Limiter(limit, algo=algo).take)
        for name, (algo, limit) in DIANA_OTHERS.items()
    ]
    return [Contestant(DIANA, Limiter(f"{PER_MINUTE}/minute").take), *others]


def _peers(keys: int) -> list[Contestant]:
    return [
        _limits(),
        _throttled("token_bucket", keys),
        _throttled("fixed_window", keys),
        _pyrate_limiter(),
    ]


def _limits() -> Contestant:
    storage = limits.storage.MemoryStorage()
    limiter = limits.strategies.FixedWindowRateLimiter(storage)
    hit = partial(limiter.hit, limits.RateLimitItemPerMinute(PER_MINUTE))
    # It walks over all its keys in a thread, ten milliseconds after a hit. What of that falls into its own turn is its cost.
    return Contestant("limits, fixed window", hit, settle=lambda: storage.timer.join())


def _throttled(algorithm: str, keys: int) -> Contestant:
    # Its store forgets the oldest of 1,024 keys unless told otherwise.
    store = throttled.MemoryStore(options={"MAX_SIZE": 2 * keys})
    quota = throttled.per_min(PER_MINUTE)
    limiter = throttled.Throttled(using=algorithm, quota=quota, store=store)
    name = f"throttled-py, {algorithm.replace('_', ' ')}"
    return Contestant(name, limiter.limit, passed=lambda result: not result.limited)


def _pyrate_limiter() -> Contestant:
    rate = pyrate_limiter.Rate(PER_MINUTE, pyrate_limiter.Duration.MINUTE)
    limiter = pyrate_limiter.Limiter(BucketPerKey(rate))
    acquire = partial(limiter.try_acquire, blocking=False)
    return Contestant("pyrate-limiter, token bucket", acquire)
