"""Fixed window: count in the minute, forget it when the next begins.

The cheapest to keep and the easiest to explain: at most rpu per window. The price is the boundary: rpu at the end of one window and
rpu at the start of the next, so up to twice rpu in one unit around it. Where that hurts, take a sliding window.

    2 per minute     ✓     ✓  ✗ │ ✓  ✓ ✗          │
                  ──────────────┼─────────────────┼──▶
                              12:01             12:02

Aligned to the `epoch`, windows begin at whole units of UTC, the same on every machine. Aligned to the `first` request, a window begins
with it: nobody can aim at the boundary, and not everybody's window ends at once.

A state is (start, count). Both alignments agree on when it counts, now - start < unit, so the alignment can be edited too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from diana.core.charge import WHOLE
from diana.core.contracts import Algorithm, Numbers
from diana.core.decision import NEVER
from diana.core.duration import SECOND_US
from diana.core.errors import ConfigError, shown
from diana.core.limit import Limit


@dataclass(frozen=True, slots=True)
class WindowParams:
    limit: int
    unit: int
    at_epoch: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.limit, self.unit, int(self.at_epoch))


LUA = """
function(state, params, cost, now)
  local limit, unit, at_epoch = unpack(params)
  local start, count, moved = now, 0, false
  if at_epoch == 1 then start = now - math.fmod(now, unit) end
  if state and state[2] > 0 and now - state[1] < unit then
    count = state[2]
    if state[1] - now > SECOND then moved = true else start = state[1] end
  end
  local reset = start + unit - now
  local after = count + cost
  if after <= limit or cost == 0 then
    return {start, after}, 1, math.max(0, limit - after), 0, after > 0 and reset or 0, 0
  end
  local retry = cost > limit and NEVER or reset
  return moved and {start, count}, 0, math.max(0, limit - count), retry, count > 0 and reset or 0, 0
end
"""


LUA_LEASE_END = """
function(state, params, now)
  local limit, unit, at_epoch = unpack(params)
  if state and state[2] > 0 and now - state[1] < unit and state[1] - now <= SECOND then return state[1] + unit end
  if at_epoch == 1 then return now - math.fmod(now, unit) + unit end
end
"""


class Window:
    code = "W"
    spelling = "window"
    also_written = ("fixed window",)
    options: tuple[str, ...] = ("align",)
    identity: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ({}, {"align": "first"})

    def params(self, limit: Limit, align: str = "epoch") -> WindowParams:
        word = align.lower() if isinstance(align, str) else align
        if word not in ("epoch", "first"):
            raise ConfigError(f"align is {shown(align)}; write epoch or first", path="align")
        return WindowParams(limit.rpu, limit.unit_us, word == "epoch")

    lua = LUA
    kernel = "window"
    lua_lease_end = LUA_LEASE_END

    @staticmethod
    def decide(
        state: Numbers | None, params: WindowParams, cost: int, now: int
    ) -> tuple[Numbers | None, tuple[bool, int, int, int, int]]:
        limit, unit, at_epoch = params.limit, params.unit, params.at_epoch
        start, count = now - now % unit if at_epoch else now, 0
        if state is not None:
            began, counted = state
            if counted and now - began < unit:
                count = counted
                if began - now > SECOND_US:
                    state = (start, count)
                else:
                    start = began
        reset = start + unit - now
        after = count + cost
        if after <= limit or not cost:
            return (start, after), (True, max(0, limit - after), 0, reset if after else 0, 0)
        retry = NEVER if cost > limit else reset
        return state, (False, max(0, limit - count), retry, reset if count else 0, 0)

    @staticmethod
    def moment_of(params: WindowParams, outcome: tuple[bool, int, int, int, int], now: int) -> int:
        """The window may begin ahead."""
        return max(now, now + outcome[3] - params.unit)

    @staticmethod
    def refund(state: Numbers, params: WindowParams, cost: int, at: int, now: int) -> Numbers:
        """Only the window that was charged gives back."""
        start, count = state
        counts = start <= at and max(at, now) - start < params.unit
        return (start, max(0, count - cost)) if counts else state

    @staticmethod
    def uncapped(params: WindowParams) -> WindowParams:
        return replace(params, limit=WHOLE // 2)

    @staticmethod
    def lease_end(state: Numbers | None, params: WindowParams, now: int) -> int | None:
        """When the window is over in which a permit is used now; None if that begins with its report."""
        if state is not None and state[1] and -SECOND_US <= now - state[0] < params.unit:
            return state[0] + params.unit
        return now - now % params.unit + params.unit if params.at_epoch else None

    @staticmethod
    def promise(params: WindowParams, interval_us: int) -> int:
        """Every window that the interval touches."""
        return params.limit * (-(-interval_us // params.unit) + 1)


window: Algorithm = Window()
