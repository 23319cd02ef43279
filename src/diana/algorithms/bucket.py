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

A refund leaves the level of the same history without the refunded charge. Two simple formulas are wrong. Subtracting the cost takes away
what belongs to later charges:

    10 per second                          level    level without A
    0.0 s   A charges 10                      10                  0
    1.0 s   A has leaked out; B charges 10    10                 10
    1.5 s   A is refunded                      5                  5

Subtracting the cost less all that leaked since the charge counts a leak many times: each of 40 parallel charges is reduced by what leaked
once. So a refund computes an upper bound. Charges before the refunded one have left at most the level less its cost. Charges after it
amount to at most the level and what could leak since then, and none of them came after the stamp. For many refunds the state gets a
*ledger*: for a few spans of time, what was charged in the span and not refunded. A state is then (level, stamp, per, start, sum, start,
sum, ...), the oldest span first. The ledger is dropped when the bucket is empty, when the limit is edited, and when nothing was refunded
for as long as a full bucket takes to run empty.
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

SPANS = 4
"""Into how many spans of the ledger the time is divided in which a full bucket runs empty."""


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
  local spans = state and #state > 4 and state[3] == per and #state or 3
  if state then
    level, stamp = state[1], state[2]
    if state[3] ~= per then level = times_over_up(level, per, state[3]) end
    if level > (ceiling or capacity) then level = ceiling or capacity end
    if stamp > now then
      if stamp - now > SECOND then stamp, moved, spans = now, true, 3 end
      if level == 0 then stamp = now end
    else
      local ticks = now - stamp
      if tick > 1 then ticks = over(ticks, tick) end
      if ticks > drain then ticks = drain end
      level = level - ticks * leak
      if level > 0 then stamp = stamp + ticks * tick else level, stamp = 0, now end
    end
    if level == 0 then spans = 3 end
  end
  local ahead = stamp - now
  local after = level + cost * per
  if cost == 0 or (cost <= limit and after <= capacity) then
    local delay, reset, room = 0, 0, capacity - after
    if cost > 0 and level > free then delay = ahead + over_up(level - free, leak) * tick end
    if after > 0 then reset = ahead + over_up(after, leak) * tick end
    local written = {after, stamp, per}
    if spans > 3 and now - state[spans - 1] < drain * tick then
      for place = 4, spans do written[place] = state[place] end
      written[spans] = written[spans] + cost * per
    end
    return written, 1, room > 0 and (room - fmod(room, per)) / per or 0, 0, reset, delay
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
        try:
            level, stamp, scale = state
        except ValueError:  # it has a ledger
            return _decide_slowly(state, params, cost, now)
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
    """The same for every case: denials, edited limits, coarse ticks, ledgers, clocks that stepped."""
    capacity, per, leak, tick = params.capacity, params.per, params.leak, params.tick
    level, stamp = leaked(state, params, now) if state else (0, now)
    ahead = stamp - now
    after = level + cost * per
    if after <= capacity or not cost:
        wait = level - params.free
        delay = ahead - (-wait // leak) * tick if wait > 0 and cost else 0
        reset = ahead - (-after // leak) * tick if after else 0
        ledger = _ledger(state, params, level, now) if state else ()
        if ledger:
            if now - ledger[-2] < params.drain * tick:
                ledger = (*ledger[:-1], ledger[-1] + cost * per)
            else:
                ledger = ()
        return (after, stamp, per, *ledger), (
            True,
            max(0, capacity - after) // per,
            0,
            reset,
            delay,
        )
    if state and state[1] - now > SECOND_US:
        state = (level, stamp, per)
    retry = NEVER if cost * per > capacity else ahead - ((capacity - after) // leak) * tick
    reset = ahead - (-level // leak) * tick if level else 0
    return state, (False, max(0, capacity - level) // per, retry, reset, 0)


def leaked(state: Numbers, params: BucketParams, now: int) -> tuple[int, int]:
    """Level and stamp as of `now`."""
    level, stamp, scale = state[:3]
    if scale != params.per:
        level = -(-level * params.per // scale)
    level = min(level, params.ceiling)
    if stamp > now:
        return level, stamp if level and stamp - now <= SECOND_US else now
    ticks = min((now - stamp) // params.tick, params.drain)
    level -= ticks * params.leak
    return (level, stamp + ticks * params.tick) if level > 0 else (0, now)


def _ledger(state: Numbers, params: BucketParams, level: int, now: int) -> Numbers:
    """Start and sum of each span; none if they say nothing of this level."""
    if state[2] != params.per or not level or state[1] - now > SECOND_US:
        return ()
    return state[3:]


def refund(state: Numbers, params: BucketParams, cost: int, at: int, now: int) -> Numbers:
    """The level of the same history without this charge, or a little more; never less.

    A coarse tick hides at which moment within it a charge was made, so each conversion to ticks is rounded to the safe side.
    """
    leak, tick = params.leak, params.tick
    level, as_of = leaked(state, params, now)
    if not level:
        return (0, now, params.per)
    if now - at >= params.drain * tick:
        return state
    stamp = min(state[1], as_of)
    last = stamp if stamp > now else min(now, stamp + tick - 1)  # nothing was poured later
    hidden = leak if tick > 1 and now > at else 0
    cost = min(cost, params.limit) * params.per
    ledger = list(_ledger(state, params, level, now))
    if at == now < stamp:  # charged just now, to the last span of a state that is stamped ahead
        at = max([stamp, *ledger[-2:-1]])
    if not ledger:
        ledger = [at, level + _ticks_up(now - at, tick) * leak]
    if at < ledger[0]:
        ledger[:2] = at, ledger[1] + _ticks_up(ledger[0] - at, tick) * leak
    span = len(ledger) - 2
    while ledger[span] > at:
        span -= 2
    ledger[span + 1] = max(0, ledger[span + 1] - cost)
    bound = min(
        level - cost + _ticks_up(last - at, tick) * leak,
        _left_since(ledger[span:], params, last, now),
    )
    rest = min(level, max(bound + hidden, level - cost, 0))
    if not rest:
        return (0, now, params.per)
    if now - ledger[-2] >= _ticks_up(params.drain, SPANS) * tick:
        ledger += [max(now, stamp) + 1, 0]
    while len(ledger) > 2 and now - ledger[2] >= params.drain * tick:
        # The oldest span holds at least what the level allows, so that it may be extended backwards.
        poured = rest + _ticks_up(now - ledger[2], tick) * leak - sum(ledger[5::2])
        ledger[:4] = ledger[2], max(ledger[3], poured)
    return (rest + (as_of - stamp) // tick * leak, stamp, params.per, *ledger)


def _left_since(ledger: list[int], params: BucketParams, last: int, now: int) -> int:
    """The level that what was poured in these spans can have left, at the most: as if all of each came at its end."""
    left, end = 0, ledger[0]
    for place in range(0, len(ledger), 2):
        next_end = min(ledger[place + 2], last) if place + 2 < len(ledger) else last
        left = max(0, left - _leaks_surely(params, next_end - end))
        left = min(params.ceiling, left + ledger[place + 1])
        end = next_end
    return max(0, left - _leaks_surely(params, now - end))


def _leaks_surely(params: BucketParams, elapsed: int) -> int:
    ticks = elapsed // params.tick - (params.tick > 1)
    return min(max(0, ticks), params.drain) * params.leak


def _ticks_up(elapsed: int, tick: int) -> int:
    return max(0, -(-elapsed // tick))


def promise(params: BucketParams, interval_us: int) -> int:
    """A full bucket and what leaks out meanwhile."""
    ticks = -(-(interval_us - 1) // params.tick)
    return (params.capacity + ticks * params.leak) // params.per
