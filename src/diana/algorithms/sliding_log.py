"""Sliding log: remember every request, and be exact.

Never more than rpu in any interval of a unit, and never stricter than that. The price is memory and work for rpu entries per key, so it
is for small limits: five password attempts per hour, not five thousand requests per second.

    2 per 5 s     ✓               ✓ ✗ ✓           the first has left at 5 s to the microsecond
               ───┴───────────────┴─┴─┴───▶
                  0               4   5 s

A state is the moments of what was admitted, oldest first; a charge of 3 is three equal moments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diana.core.contracts import Algorithm, State
from diana.core.decision import NEVER
from diana.core.duration import SECOND_US
from diana.core.errors import ConfigError
from diana.core.limit import Limit

MOST_ENTRIES = 100_000


@dataclass(frozen=True, slots=True)
class LogParams:
    limit: int
    unit: int

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.limit, self.unit)


LUA = """
function(state, params, cost, now)
  local limit, unit = unpack(params)
  local log, moved = {}, false
  if state then
    moved = #state > 0 and state[#state] - now > SECOND
    for place = 1, #state do
      local moment = moved and math.min(state[place], now) or state[place]
      if moment > now - unit then log[#log + 1] = moment end
    end
  end
  local function reset() return #log > 0 and log[#log] + unit - now or 0 end
  local after = #log + cost
  if after <= limit or cost == 0 then
    local newest = #log > 0 and math.max(now, log[#log]) or now
    for _ = 1, cost do log[#log + 1] = newest end
    return log, 1, math.max(0, limit - after), 0, reset(), 0
  end
  local retry = cost > limit and NEVER or log[after - limit] + unit - now
  return moved and log, 0, math.max(0, limit - #log), retry, reset(), 0
end
"""


class SlidingLog:
    code = "SL"
    spelling = "sliding log"
    options: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ({},)

    def params(self, limit: Limit) -> LogParams:
        if limit.rpu > MOST_ENTRIES:
            raise ConfigError(
                f"a sliding log keeps every request, and {limit.rpu:,} are too many; write at most {MOST_ENTRIES:,}, "
                "or take a sliding window (SW)",
                path="rpu",
            )
        return LogParams(limit.rpu, limit.unit_us)

    lua = LUA

    @staticmethod
    def decide(
        state: State | None, params: LogParams, cost: int, now: int
    ) -> tuple[State | None, tuple[bool, int, int, int, int]]:
        limit, unit = params.limit, params.unit
        log = _as_of(state or (), unit, now)
        if state and state[-1] - now > SECOND_US:
            state = log
        after = len(log) + cost
        if after <= limit or not cost:
            written = log + (max(now, log[-1]) if log else now,) * cost
            return written, (True, max(0, limit - after), 0, _reset(written, unit, now), 0)
        retry = NEVER if cost > limit else log[after - limit - 1] + unit - now
        return state, (False, max(0, limit - len(log)), retry, _reset(log, unit, now), 0)

    @staticmethod
    def refund(state: State, params: LogParams, cost: int, at: int, now: int) -> State:
        """Only entries of that very moment that still count are struck out."""
        log = _as_of(state, params.unit, now)
        first = bisect_left(log, at)
        last = min(bisect_right(log, at), first + cost)
        return log[:first] + log[last:]

    @staticmethod
    def promise(params: LogParams, interval_us: int) -> int:
        return params.limit * -(-interval_us // params.unit)


def _as_of(log: State, unit: int, now: int) -> State:
    """The entries that count at `now`; those from a clock that was ahead are moved to `now`."""
    if not log:
        return log
    if log[-1] - now > SECOND_US:
        log = tuple(min(moment, now) for moment in log)
    if log[0] <= now - unit:
        log = log[bisect_right(log, now - unit) :]
    return log


def _reset(log: State, unit: int, now: int) -> int:
    return log[-1] + unit - now if log else 0


sliding_log: Algorithm = SlidingLog()
