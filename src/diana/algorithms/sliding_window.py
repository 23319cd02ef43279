"""Sliding window by slices: never more than rpu in any interval of a unit, at the memory of a few counters.

The usual sliding window weighs the last window by how much of it still overlaps. That guesses that its requests were spread evenly,
and lets up to twice the limit through when they were not. This one counts in slices. The window is the current slice and the `slices`
before it, a little longer than the unit, so no interval of a unit ever sees more than rpu. The price: a caller that always pushes
gets slices/(slices+1) of it.

    slices   │ 2 │ 0 │ 5 │ 1 │ 0 │ 0 │ 3 │ 0 │ 0 │ 1 │ 2 │
             └ leaves next                             └ current

A state is (last, total, ring…): the slice of the last charge, the sum of the ring, and slices + 1 counts, slice s at place
s modulo slices + 1. A slice leaves when its place is needed again.
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

MOST_SLICES = 1_000


@dataclass(frozen=True, slots=True)
class SlidingParams:
    limit: int
    slice_us: int
    slices: int

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.limit, self.slice_us, self.slices)


LUA = """
function(state, params, cost, now)
  local limit, slice, slices = unpack(params)
  local places = slices + 1
  local current = over(now, slice)
  local last, total, ring, moved = current, 0, {}, false
  local function at(number) return math.fmod(math.fmod(number, places) + places, places) + 1 end
  for place = 1, places do ring[place] = state and state[place + 2] or 0 end
  if state then
    last, total = state[1], state[2]
    if current > last then
      for passed = last + 1, math.min(current, last + places) do
        total = total - ring[at(passed)]
        ring[at(passed)] = 0
      end
      last = current
    elseif total == 0 then
      last = current
    elseif last * slice - now > SECOND then
      local turned = {}
      for place = 0, places - 1 do turned[place + 1] = ring[at(place + math.fmod(last - current, places))] end
      ring, last, moved = turned, current, true
    end
  end
  local function leaves(excess)
    local gone, oldest = 0, last - slices
    while true do
      gone = gone + ring[at(oldest)]
      if gone >= excess or oldest == last then break end
      oldest = oldest + 1
    end
    return (oldest + places) * slice - now
  end
  local function written()
    local flat = {last, total}
    for place = 1, places do flat[place + 2] = ring[place] end
    return flat
  end
  if total + cost <= limit or cost == 0 then
    total = total + cost
    ring[at(last)] = ring[at(last)] + cost
    local more, reset = 0, 0
    if total > 0 then
      more = leaves(math.max(0, total - limit) + 1)
      reset = cost > 0 and (last + places) * slice - now or leaves(total)
    end
    return written(), 1, math.max(0, limit - total), more, reset, 0
  end
  local retry = cost > limit and NEVER or leaves(total + cost - limit)
  return moved and written(), 0, math.max(0, limit - total), retry, total > 0 and leaves(total) or 0, 0
end
"""


class SlidingWindow:
    code = "SW"
    spelling = "sliding window"
    options: tuple[str, ...] = ("slices",)
    identity: tuple[str, ...] = ("slices",)
    examples: tuple[Mapping[str, Any], ...] = ({}, {"slices": 1}, {"slices": 7})

    def params(self, limit: Limit, slices: int = 10) -> SlidingParams:
        if slices.__class__ is not int or not 1 <= slices <= MOST_SLICES:
            raise ConfigError(
                f"slices is {shown(slices)}; write a whole number from 1 to {MOST_SLICES}",
                path="slices",
            )
        # Rounded up: the slices must cover the unit, or a unit could see more than the limit.
        return SlidingParams(limit.rpu, -(-limit.unit_us // slices), slices)

    lua = LUA
    kernel = "sliding window"

    @staticmethod
    def decide(
        state: Numbers | None, params: SlidingParams, cost: int, now: int
    ) -> tuple[Numbers | None, tuple[bool, int, int, int, int]]:
        limit, slice_us, slices = params.limit, params.slice_us, params.slices
        last, total, ring = _as_of(state, params, now)
        if state is not None and state[0] * slice_us - now > SECOND_US:
            state = (last, total, *ring)
        after = total + cost
        if after <= limit or not cost:
            if not after:
                return (last, after, *ring), (True, limit, 0, 0, 0)
            place = last % (slices + 1)
            ring[place] = newest = ring[place] + cost
            more = reset = (last + slices + 1) * slice_us - now
            if newest != after:
                more = _leaves(last, after - limit + 1 if after > limit else 1, ring, params) - now
                if not cost:
                    reset = _leaves(last, after, ring, params) - now
            return (last, after, *ring), (True, max(0, limit - after), more, reset, 0)
        retry = NEVER if cost > limit else _leaves(last, after - limit, ring, params) - now
        reset = _leaves(last, total, ring, params) - now if total else 0
        return state, (False, max(0, limit - total), retry, reset, 0)

    @staticmethod
    def moment_of(params: SlidingParams, outcome: tuple[bool, int, int, int, int], now: int) -> int:
        """The slice that was charged, the last to leave, may begin ahead."""
        return max(now, now + outcome[3] - (params.slices + 1) * params.slice_us)

    @staticmethod
    def refund(state: Numbers, params: SlidingParams, cost: int, at: int, now: int) -> Numbers:
        """Only a slice that still counts gives back."""
        last, total, ring = _as_of(state, params, now)
        charged = at // params.slice_us
        if last - params.slices <= charged <= last:
            place = charged % (params.slices + 1)
            back = min(cost, ring[place])
            ring[place] -= back
            total -= back
        return (last, total, *ring)

    @staticmethod
    def uncapped(params: SlidingParams) -> SlidingParams:
        return replace(params, limit=WHOLE // 2)

    @staticmethod
    def promise(params: SlidingParams, interval_us: int) -> int:
        """The window covers slices · slice_us in full; longer intervals are several windows."""
        return params.limit * -(-interval_us // (params.slices * params.slice_us))


def _as_of(state: Numbers | None, params: SlidingParams, now: int) -> tuple[int, int, list[int]]:
    """Last slice, total and ring with everything gone that has left the window by `now`."""
    slice_us, places = params.slice_us, params.slices + 1
    current = now // slice_us
    if state is None:
        return current, 0, [0] * places
    last, total, *ring = state
    if current > last:
        for passed in range(last + 1, min(current, last + places) + 1):
            total -= ring[passed % places]
            ring[passed % places] = 0
        last = current
    elif not total:
        last = current  # as good as never seen, however far ahead it is stamped
    elif last * slice_us - now > SECOND_US:
        turn = (last - current) % places
        ring = ring[turn:] + ring[:turn]
        last = current
    return last, total, ring


def _leaves(last: int, excess: int, ring: list[int], params: SlidingParams) -> int:
    """The moment by which at least `excess` has left the window."""
    places = params.slices + 1
    gone = 0
    for oldest in range(last - params.slices, last + 1):
        gone += ring[oldest % places]
        if gone >= excess:
            break
    return (oldest + places) * params.slice_us


sliding_window: Algorithm = SlidingWindow()
