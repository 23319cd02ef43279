"""Has the server fallen silent? How long a background thread waits on a second connection until it says so.

A server on the same machine replies late if the machine has too few processors for all. What this thread loses, the server may lose, too:
while this thread is ready to run and waits for a processor, the time does not count, and as much again does not count for the server. After
half a second of silence the server has fallen silent on any machine.

The kernel measures this for each thread. Rejected: the load average, a guess that counts all threads of this process that wake at the same
time, on a machine that has nothing else to do; and CPU pressure, which counts what any thread of the machine loses, so that on a machine
with much to do it would take half a second each time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from diana.redis_client.circuit_breaker import FAILING_SECONDS, Breaker
from diana.redis_client.time_budget import SHORTEST, SLICES, UNNOTICED, Budget

LEAST_SECONDS = 0.01
"""A server has so long to reply on a second connection, however small the budget."""
SCHEDULING = "/proc/thread-self/schedstat"


def silence_budget(breaker: Breaker, budget: float) -> Callable[[float], Budget]:
    """Makes the budgets of a background thread that queries the server of this breaker; `budget` is that of a request."""
    return lambda seconds: SilenceBudget(seconds, breaker, budget)


class SilenceBudget(Budget):
    """Ends early if the server is suspected meanwhile, and was silent here, too, for the rest of a request's budget."""

    __slots__ = ("_breaker", "_counted", "_delay", "_is_counting", "_request", "_waited")

    def __init__(self, seconds: float, breaker: Breaker, request: float) -> None:
        super().__init__(seconds)
        self._breaker = breaker
        self._request = request
        self._slice = min(self._slice, self._enough / SLICES)
        self._is_counting = breaker.is_suspect
        self._delay = run_delay_seconds() if self._is_counting else None
        self._waited = 0.0
        """Seconds since the server is suspected."""
        self._counted = 0.0
        """The same without those that the server may have lost as this thread did."""

    def slice(self) -> float:
        left = self._enough - self._counted
        return max(SHORTEST, left) if left < self._slice else super().slice()

    def spend(self, waited: float) -> None:
        super().spend(waited)
        if not self._breaker.is_suspect:
            self._is_counting, self._waited, self._counted = False, 0.0, 0.0
            return
        delay, before = run_delay_seconds(), self._delay
        self._delay = delay
        if not self._is_counting:
            self._is_counting = True  # with the next wait: the suspicion is younger than this one
            return
        lost = waited - self._slice if delay is None or before is None else delay - before
        if waited > self._slice + UNNOTICED:
            waited = self._slice
        self._waited += waited
        self._counted += waited if lost < UNNOTICED else max(0.0, waited - lost)

    def is_spent(self) -> bool:
        return self.left <= 0 or self.proves_silence()

    def proves_silence(self) -> bool:
        breaker = self._breaker
        if not breaker.is_suspect or monotonic() - breaker.suspected < self._request:
            return False
        return self._counted >= self._enough or self._waited >= max(FAILING_SECONDS, self._enough)

    @property
    def _enough(self) -> float:
        """The suspicion came when half the budget of a request was over."""
        return max(self._request / 2, LEAST_SECONDS)


def run_delay_seconds() -> float | None:
    """For how long this thread has been ready to run and had no processor, since it began. None: the system does not say.

    Other systems than Linux, and some sandboxes, have no such file. A sandbox may also have the file and report 0 for everything; then it
    reports, too, that this thread has never run.
    """
    with suppress(OSError, ValueError), open(SCHEDULING, encoding="ascii") as file:
        ran, delayed, *_ = map(int, file.read().split())
        if ran:
            return delayed / 1_000_000_000
    return None
