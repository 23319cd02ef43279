"""A bucket that leaks: the kernel behind the token bucket and the leaky bucket.

The naive bucket holds a fraction of tokens as a float and adds `elapsed * rate` on every request. It drifts: after a million
additions of 0.1 it is off by more than a request, no two languages are off by the same, and the moment it promises for a retry
is a little too early or too late.

So the bucket holds *drops*, and drops are whole. With g = gcd(rpu, unit in µs), one request is unit/g drops and rpu/g drops
leak out per microsecond. Three per second: a request is 1,000,000 drops, 3 leak per µs, and nothing is ever rounded.

    level
    capacity ┤      ╭╮   ╭╮          a request pours `per` drops in;
             │   ╭╮ │ ╲╭╮│ ╲         what would rise above `capacity` is denied,
             │ ╭╮│ ╲│  ╰╯   ╲        and until the excess has leaked out is its retry_after
           0 ┼─╯╰╯───────────╲───▶ now

A level counts what is *used*; a level of 0 is the same as never seen. The token bucket calls the empty rest "tokens", the
leaky bucket calls the level a queue. They differ in capacity and in who has to wait.

Numbers stay below 2**53. Where drops of one µs would not (999,983 per day), time is counted in *ticks* of the smallest power of ten
µs that divides the unit and fits. The stamp then moves by whole ticks only, so the rate stays exact.

A state is (level, stamp, per). `per` is there because limits are edited: a level written under another rate is converted, in
requests, rounded up; clamped to the new capacity as of its stamp; then it leaks at the new rate. Rounding up is safe both ways: the
bound of a request that passed is a whole number of drops in either scale.

Tiers are not edits: one counter sees 600 a minute and 60 a minute in any order. Were its level clamped to what the lower tier holds, each
visit of the lower tier would empty nine tenths of the bucket for the higher one. So the tiers of a rule have one scale, in which no
level is ever rounded, and one *ceiling*, the highest tier's capacity: a lower tier that finds more than its own capacity denies and
leaves it there. Since a level never leaks faster than at the highest rate, no more passes than the highest burst and rate promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import NamedTuple

from diana.core.charge import WHOLE
from diana.core.contracts import Numbers
from diana.core.decision import NEVER
from diana.core.duration import SECOND_US
from diana.core.errors import ConfigError
from diana.core.limit import Limit


@dataclass(frozen=True, slots=True)
class BucketParams:
    capacity: int
    """In drops."""
    free: int
    """Who finds no more than this in the bucket does not wait, in drops."""
    per: int
    """Drops in one request."""
    leak: int
    """Drops that leak out per tick."""
    drain: int
    """Ticks in which what is filled up to the ceiling runs empty."""
    tick: int
    """In µs."""
    limit: int
    ceiling: int
    """The highest level that may be found, in drops: the capacity of the highest tier."""
    hot: tuple[int, int, int, int, int, int | None, tuple[bool, int, int, int, int]]
    """Capacity, per, leak, leak - 1 (to round up), free; `per` once more if a tick is one µs, else None: a state of
    this scale needs no conversion; and what the first request is told. A plain tuple: it is unpacked on every request."""

    @property
    def pace(self) -> tuple[int, float]:
        """In µs, for header lines: how long a full bucket takes to run empty, and one request."""
        return -(-self.capacity // self.leak) * self.tick, self.per * self.tick / self.leak

    @property
    def numbers(self) -> tuple[int, ...]:
        scale = (self.per, self.leak, self.drain, self.tick)
        own = (self.capacity, self.free, *scale, self.limit)
        # Without tiers the ceiling is the capacity, and left out: as others have always written it.
        return own if self.ceiling == self.capacity else (*own, self.ceiling)


LUA = """
function(state, params, cost, now)
  local capacity, free, per, leak, drain, tick, limit, ceiling = unpack(params)
  local level, stamp, moved = 0, now, false
  if state then
    level, stamp = state[1], state[2]
    if state[3] ~= per then level = times_over_up(level, per, state[3]) end
    if level > (ceiling or capacity) then level = ceiling or capacity end
    if stamp > now then
      if stamp - now > SECOND then stamp, moved = now, true end
    else
      local ticks = now - stamp
      if tick > 1 then ticks = over(ticks, tick) end
      if ticks > drain then ticks = drain end
      level = level - ticks * leak
      if level > 0 then stamp = stamp + ticks * tick else level, stamp = 0, now end
    end
  end
  local ahead = stamp - now
  local after = level + cost * per
  if cost == 0 or (cost <= limit and after <= capacity) then
    local delay, reset, room = 0, 0, capacity - after
    if cost > 0 and level > free then delay = ahead + over_up(level - free, leak) * tick end
    if after > 0 then reset = ahead + over_up(after, leak) * tick end
    return {after, stamp, per}, 1, room > 0 and (room - fmod(room, per)) / per or 0, 0, reset, delay
  end
  local retry, reset = NEVER, 0
  if cost <= limit then retry = ahead + over_up(after - capacity, leak) * tick end
  if level > 0 then reset = ahead + over_up(level, leak) * tick end
  return moved and {level, stamp, per}, 0, over(math.max(0, capacity - level), per), retry, reset, 0
end
"""
"""The same in Lua, for stores that count there. Nothing in it may reach 2**53: see `decide`."""


class Scale(NamedTuple):
    per: int
    leak: int
    tick: int


def scales_from_limits(limits: Sequence[Limit], places: int) -> list[Scale]:
    """The finest tick in which a bucket of so many places stays below 2**53, and one request is as many drops for all of them."""
    unit_us = lcm(*(limit.unit_us for limit in limits))
    rates = [limit.rpu * (unit_us // limit.unit_us) for limit in limits]
    tick = 1
    while unit_us % tick == 0:
        ticks = unit_us // tick
        g = gcd(ticks, *rates)
        per = ticks // g
        if 2 * places * per < WHOLE:
            return [Scale(per, rate // g, tick) for rate in rates]
        tick *= 10
    together = ", ".join(map(str, limits))
    raise ConfigError(
        f"{together} with {places:,} places is too large to count exactly; write a smaller burst, or a rounder number",
        path="burst",
    )


def bucket_params(scale: Scale, capacity: int, free: int, ceiling: int) -> BucketParams:
    per, leak, tick = scale
    drain = -(-ceiling // leak)
    if drain * tick >= WHOLE:
        said = "so large a burst would take centuries to refill; write a smaller one"
        if ceiling > capacity:
            said = "what the highest tier may use would take centuries to run off at the lowest; write numbers closer together"
        raise ConfigError(said, path="burst")
    limit = capacity // per
    first = (True, limit - 1, 0, -(-per // leak) * tick, 0)
    hot = (capacity, per, leak, leak - 1, free, per if tick == 1 else None, first)
    return BucketParams(capacity, free, per, leak, drain, tick, limit, ceiling, hot)


def with_room(params: BucketParams, times: int) -> BucketParams:
    """The same rate with so many times the capacity; the same if that is too large to count."""
    scale = Scale(params.per, params.leak, params.tick)
    try:
        return bucket_params(
            scale, times * params.capacity, times * params.capacity, times * params.ceiling
        )
    except ConfigError:
        return params


def decide(
    state: Numbers | None, params: BucketParams, cost: int, now: int
) -> tuple[Numbers | None, tuple[bool, int, int, int, int]]:
    capacity, per, leak, almost, free, fine, first = params.hot
    if state is not None:
        level, stamp, scale = state
        elapsed = now - stamp
        if elapsed < 0 or scale != fine or level > capacity:
            return _decide_slowly(state, params, cost, now)
        # Lua and C clamp `elapsed` to `drain` first, to stay below 2**53; here the product may be as large as it likes.
        level -= elapsed * leak
        if level > 0:
            after = level + per * cost
            room = capacity - after
            if room < 0:
                return _decide_slowly(state, params, cost, now)
            delay = 0 if level <= free or not cost else -((free - level) // leak)
            return (after, now, per), (True, room // per, 0, (after + almost) // leak, delay)
    if cost != 1 or fine is None:
        return _decide_slowly(state, params, cost, now)
    return (per, now, per), first


def _decide_slowly(
    state: Numbers | None, params: BucketParams, cost: int, now: int
) -> tuple[Numbers | None, tuple[bool, int, int, int, int]]:
    """The same for every case: denials, edited limits, coarse ticks, clocks that stepped."""
    capacity, per, leak, tick = params.capacity, params.per, params.leak, params.tick
    level, stamp = leaked(state, params, now) if state else (0, now)
    ahead = stamp - now
    after = level + cost * per
    if after <= capacity or not cost:
        wait = level - params.free
        delay = ahead - (-wait // leak) * tick if wait > 0 and cost else 0
        reset = ahead - (-after // leak) * tick if after else 0
        return (after, stamp, per), (True, max(0, capacity - after) // per, 0, reset, delay)
    if state and state[1] - now > SECOND_US:
        state = (level, stamp, per)
    retry = NEVER if cost * per > capacity else ahead - ((capacity - after) // leak) * tick
    reset = ahead - (-level // leak) * tick if level else 0
    return state, (False, max(0, capacity - level) // per, retry, reset, 0)


def leaked(state: Numbers, params: BucketParams, now: int) -> tuple[int, int]:
    """Level and stamp as of `now`."""
    level, stamp, scale = state
    if scale != params.per:
        level = -(-level * params.per // scale)
    level = min(level, params.ceiling)
    if stamp > now:
        return level, stamp if stamp - now <= SECOND_US else now
    ticks = min((now - stamp) // params.tick, params.drain)
    level -= ticks * params.leak
    return (level, stamp + ticks * params.tick) if level > 0 else (0, now)


def refund(state: Numbers, params: BucketParams, cost: int, at: int, now: int) -> Numbers:
    """What has not leaked out since comes back."""
    level, stamp = leaked(state, params, now)
    ticks = min(max(0, now - at) // params.tick, params.drain)
    back = min(cost, params.limit) * params.per - ticks * params.leak
    return (level - min(level, max(0, back)), stamp, params.per)


def promise(params: BucketParams, interval_us: int) -> int:
    """A full bucket and what leaks out meanwhile."""
    ticks = -(-(interval_us - 1) // params.tick)
    return (params.capacity + ticks * params.leak) // params.per
