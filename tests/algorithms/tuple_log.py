"""The sliding log as plain as can be, a tuple of all moments: what the real one is compared with."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from diana.algorithms.sliding_log import LogParams
from diana.core.contracts import Numbers
from diana.core.decision import NEVER
from diana.core.duration import SECOND_US


class TupleLog:
    """A charge of 3 is three equal moments."""

    @staticmethod
    def decide(
        state: Numbers | None, params: LogParams, cost: int, now: int
    ) -> tuple[Numbers | None, tuple[bool, int, int, int, int]]:
        limit, unit = params.limit, params.unit
        log = _as_of(state or (), unit, now)
        if state and state[-1] - now > SECOND_US:
            state = log
        after = len(log) + cost
        if after <= limit or not cost:
            written = log + (max(now, log[-1]) if log else now,) * cost
            more = written[max(0, after - limit)] + unit - now if written else 0
            return written, (True, max(0, limit - after), more, _reset(written, unit, now), 0)
        retry = NEVER if cost > limit else log[after - limit - 1] + unit - now
        return state, (False, max(0, limit - len(log)), retry, _reset(log, unit, now), 0)

    @staticmethod
    def refund(state: Numbers, params: LogParams, cost: int, at: int, now: int) -> Numbers:
        """Only entries of that very moment that still count are struck out."""
        log = _as_of(state, params.unit, now)
        first = bisect_left(log, at)
        last = min(bisect_right(log, at), first + cost)
        return log[:first] + log[last:]


def _as_of(log: Numbers, unit: int, now: int) -> Numbers:
    """The entries that count at `now`; those from a clock that was ahead are moved to `now`."""
    if not log:
        return log
    if log[-1] - now > SECOND_US:
        log = tuple(min(moment, now) for moment in log)
    if log[0] <= now - unit:
        log = log[bisect_right(log, now - unit) :]
    return log


def _reset(log: Numbers, unit: int, now: int) -> int:
    return log[-1] + unit - now if log else 0
