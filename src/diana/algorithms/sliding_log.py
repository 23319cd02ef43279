"""Sliding log: remember every request, and be exact.

Never more than rpu in any interval of a unit, and never stricter than that. The price is memory for up to rpu entries per key, so it
is for small limits: five password attempts per hour, not five thousand requests per second. A decision costs the same at any length.

    2 per 5 s     ✓               ✓ ✗ ✓           the first has left at 5 s to the microsecond
               ───┴───────────────┴─┴─┴───▶
                  0               4   5 s

A state is a Log: the moments of what was admitted, oldest first, and how much at each; a charge of 3 is one entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diana.core.contracts import Algorithm
from diana.core.decision import NEVER
from diana.core.duration import SECOND_US
from diana.core.entry_log import NO_LOG, NO_MOMENT, Log
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
function(log, params, cost, now)
  local limit, unit = unpack(params)
  local moved = log.newest and log.newest - now > SECOND
  if moved then log.clamp(now) end
  log.drop(now - unit)
  local before = log.amount
  local after = before + cost
  if after <= limit or cost == 0 then
    local oldest = before > 0 and log.nth(math.max(0, before - limit) + 1)
    if cost > 0 then log.append(math.max(now, log.newest or now), cost) end
    if not log.newest then return log, 1, limit, 0, 0, 0 end
    return log, 1, math.max(0, limit - after), (oldest or log.newest) + unit - now, log.newest + unit - now, 0
  end
  local retry = cost > limit and NEVER or log.nth(after - limit) + unit - now
  local reset = log.newest and log.newest + unit - now or 0
  return moved and log, 0, math.max(0, limit - before), retry, reset, 0
end
"""

LUA_REFUND = """
function(log, params, cost, at, now)
  local unit = params[2]
  if log.newest and log.newest - now > SECOND then log.clamp(now) end
  log.drop(now - unit)
  log.strike(at, cost)
  return log, log.newest and log.newest + unit - now or 0
end
"""


class SlidingLog:
    code = "SL"
    spelling = "sliding log"
    also_written = ("sliding window log", "moving window")
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

    not_leased = (
        "it counts each request at its own moment, and of permits only their report is known"
    )
    keeps_log = True
    lua = LUA
    kernel = "sliding log"
    lua_refund = LUA_REFUND

    @staticmethod
    def decide(
        state: Log | None, params: LogParams, cost: int, now: int
    ) -> tuple[Log | None, tuple[bool, int, int, int, int]]:
        limit, unit = params.limit, params.unit
        log = NO_LOG if state is None else state
        if log.newest - now > SECOND_US:
            log = state = log.clamped(now)
        log = log.after(now - unit)
        before = log.amount
        after = before + cost
        if after <= limit or not cost:
            if cost:
                newest = log.newest
                log = log.append(now if newest < now else newest, cost)
            elif not after:
                return log, (True, limit, 0, 0, 0)
            _, _, first, end, _, newest, _ = log
            if after > limit:
                oldest = log.nth(after - limit + 1)
            else:
                oldest = newest if first == end else log.moments[first]
            more, reset = oldest + unit - now, newest + unit - now
            return log, (True, limit - after if after < limit else 0, more, reset, 0)
        retry = NEVER if cost > limit else log.nth(after - limit) + unit - now
        return state, (False, max(0, limit - before), retry, _reset(log, unit, now), 0)

    @staticmethod
    def moment_of(params: LogParams, outcome: tuple[bool, int, int, int, int], now: int) -> int:
        """That of the newest entry, which may be ahead."""
        return now + outcome[3] - params.unit

    @staticmethod
    def refund(state: Log, params: LogParams, cost: int, at: int, now: int) -> Log:
        """Only entries of that very moment that still count are struck out."""
        if state.newest - now > SECOND_US:
            state = state.clamped(now)
        return state.after(now - params.unit).strike(at, cost)

    @staticmethod
    def promise(params: LogParams, interval_us: int) -> int:
        return params.limit * -(-interval_us // params.unit)


def _reset(log: Log, unit: int, now: int) -> int:
    return log.newest + unit - now if log.newest != NO_MOMENT else 0


sliding_log: Algorithm = SlidingLog()
