"""Concurrency: so many at once, however long each of them takes.

The other algorithms count how often; this one counts how many are inside. Who is admitted takes a place and gives it back when done, so
nobody can tell when one will be free: a denial names no time, unless `retry` does. A place that is never given back, because its process
died, runs off after `hold`; one that is needed for longer is renewed before that.

    2 at once     A ├──────────┤
                  B   ├─────────────✝  ...........┤      B's process died: its place is free when `hold` is over
                  C     ✗    ✓                            denied; passes as soon as A has left
                ──────────────────────────────────────▶
                      └────────── hold ───────────┘

A state is a Log, like the sliding log's: a place is one entry, at a moment that no other place of the key has (a microsecond later than the
newest, if that is of this very moment), and counts until its moment is `hold` old. So the moment is the place's name. Giving it back
strikes that very entry out: done twice, the second finds nothing. Renewing moves the entry to now.

An edit that shortens `hold` must not expire slots whose owners renew them at the old pace. So the new params know the former hold, which
counts until the last slot that was acquired or renewed under it has expired.

Rejected: a bare number of places taken (a process that dies takes its places with it, for ever), and a list of who holds one (a name for
each on the wire, where a moment does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from diana.core.contracts import Algorithm
from diana.core.decision import NEVER, UNKNOWN
from diana.core.duration import SECOND_US, micros_from_spelling
from diana.core.entry_log import NO_LOG, NO_MOMENT, Log
from diana.core.errors import ConfigError, shown
from diana.core.limit import Limit

MOST_PLACES = 100_000
MOST_WAITING = 100
"""For a place of one key, unless `max_waiting` says otherwise."""


class FormerHold(NamedTuple):
    """The longer hold that an edit has replaced, and until when slots may have been acquired or renewed under it."""

    hold_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class PlaceParams:
    limit: int
    hold: int
    retry: int = 0
    """What a denied client is told; 0: nothing."""
    max_wait_us: int = 0
    """For how long a request waits for a place; 0: it does not. Shells do the waiting."""
    max_waiting: int = MOST_WAITING
    former: FormerHold | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        own = (self.limit, self.hold, self.retry)
        return own if self.former is None else (*own, *self.former)

    def hold_at(self, now: int) -> int:
        former = self.former
        return self.hold if former is None or now >= former.until_us else former.hold_us


LUA = """
function(log, params, cost, now)
  local most, hold, retry, former, ends = unpack(params)
  if former and now < ends then hold = former end
  local moved = log.newest and log.newest - now > SECOND
  if moved then log.clamp(now) end
  log.drop(now - hold)
  local before, newest = log.amount, log.newest
  local after = before + cost
  if after <= most or cost == 0 then
    if cost > 0 then log.append(newest and newest >= now and newest + 1 or now, cost) end
    return log, 1, math.max(0, most - after), 0, log.newest and log.newest + hold - now or 0, 0
  end
  local again = cost > most and NEVER or retry > 0 and retry or UNKNOWN
  return moved and log, 0, math.max(0, most - before), again, newest and newest + hold - now or 0, 0
end
"""

LUA_REFUND = """
function(log, params, cost, at, now)
  local hold, former, ends = params[2], params[4], params[5]
  if former and now < ends then hold = former end
  log.drop(now - hold)
  log.release(at, cost)
  return log, log.newest and log.newest + hold - now or 0
end
"""

LUA_RENEW = """
function(log, params, cost, at, now)
  local most, hold, _, former, ends = unpack(params)
  if former and now < ends then hold = former end
  if log.newest and log.newest - now > SECOND then log.clamp(now) end
  log.drop(now - hold)
  local before, moment = log.amount, 0
  log.release(at, cost)
  if log.amount < before or log.amount + cost <= most then
    moment = log.newest and log.newest >= now and log.newest + 1 or now
    log.append(moment, cost)
  end
  return log, log.newest and log.newest + hold - now or 0, moment
end
"""


class Concurrency:
    code = "C"
    spelling = "concurrency"
    options: tuple[str, ...] = ("retry", "max_wait", "max_waiting")
    identity: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ({}, {"retry": "1s"})
    uses_slots = True
    not_leased = "a place is given back to the fleet, not used up"

    def params(
        self,
        limit: Limit,
        retry: str | None = None,
        max_wait: str | None = None,
        max_waiting: int | None = None,
        former_hold: FormerHold | None = None,
    ) -> PlaceParams:
        if limit.rpu > MOST_PLACES:
            raise ConfigError(
                f"{limit.rpu:,} places are too many to keep apart; write at most {MOST_PLACES:,}",
                path="most",
            )
        if max_waiting is not None and (max_waiting.__class__ is not int or max_waiting < 1):
            raise ConfigError(
                f"max_waiting is {shown(max_waiting)}; write a whole number of requests from 1",
                path="max_waiting",
            )
        if max_waiting is not None and max_wait is None:
            raise ConfigError(
                "max_waiting says how many may wait, and without max_wait none does; write max_wait: 1s too, or remove it",
                path="max_waiting",
            )
        return PlaceParams(
            limit.rpu,
            limit.unit_us,
            _micros("retry", retry),
            _micros("max_wait", max_wait),
            MOST_WAITING if max_waiting is None else max_waiting,
            former_hold,
        )

    keeps_log = True
    lua = LUA
    lua_refund = LUA_REFUND
    lua_renew = LUA_RENEW

    @staticmethod
    def share(
        limit: Limit, options: Mapping[str, Any], nodes: int, weight: int = 1
    ) -> tuple[Limit, dict[str, Any]]:
        """Of the places; each is held as long as ever."""
        return limit._replace(rpu=max(1, limit.rpu * weight // nodes)), dict(options)

    @staticmethod
    def options_after_edit(
        options: Mapping[str, Any], params: PlaceParams, former: PlaceParams, now: int
    ) -> Mapping[str, Any]:
        """Slots acquired under a longer hold keep it until they are renewed under the new one, or expire."""
        hold = former.hold_at(now)
        if hold <= params.hold:
            return options
        return {**options, "former_hold": FormerHold(hold, now + hold)}

    @staticmethod
    def decide(
        state: Log | None, params: PlaceParams, cost: int, now: int
    ) -> tuple[Log | None, tuple[bool, int, int, int, int]]:
        most = params.limit
        hold = params.hold if params.former is None else params.hold_at(now)
        log = NO_LOG if state is None else state
        newest = log.newest
        if newest == NO_MOMENT:
            before = 0  # the ordinary case: the key has nothing else under way
        else:
            if newest - now > SECOND_US:
                log = state = log.clamped(now)
            log = log.after(now - hold)
            newest = log.newest
            before = log.total - log.before
        after = before + cost
        if after <= most or not cost:
            if cost:
                newest = now if newest < now else newest + 1
                log = log.append(newest, cost)
            reset = newest + hold - now if newest != NO_MOMENT else 0
            return log, (True, most - after if after < most else 0, 0, reset, 0)
        again = NEVER if cost > most else params.retry or UNKNOWN
        reset = newest + hold - now if newest != NO_MOMENT else 0
        return state, (False, most - before if before < most else 0, again, reset, 0)

    @staticmethod
    def moment_of(params: PlaceParams, outcome: tuple[bool, int, int, int, int], now: int) -> int:
        """It is the newest of all places, so it is the last to run off."""
        return now + outcome[3] - params.hold_at(now)

    @staticmethod
    def refund(state: Log, params: PlaceParams, cost: int, at: int, now: int) -> Log:
        """Not stamped anew though the clock was set back: a slot is found by its moment. The next decision does it."""
        if state.newest == at and state.first == state.end and state.total - state.before <= cost:
            return NO_LOG  # it was the only one
        return state.after(now - params.hold_at(now)).strike(at, cost)

    @staticmethod
    def renew(
        state: Log | None, params: PlaceParams, cost: int, at: int, now: int
    ) -> tuple[Log, int]:
        """One that is still there moves, whatever the limit is by now; one that has run off is taken anew if there is room."""
        log = NO_LOG if state is None else state
        if log.newest - now > SECOND_US:
            log = log.clamped(now)
        log = log.after(now - params.hold_at(now))
        left = log.strike(at, cost)
        if left.amount == log.amount and left.amount + cost > params.limit:
            return log, 0
        moment = max(now, left.newest + 1)
        return left.append(moment, cost), moment

    @staticmethod
    def promise(params: PlaceParams, interval_us: int) -> int:
        """If none is given back."""
        return params.limit * -(-interval_us // params.hold)


def _micros(name: str, spelling: str | None) -> int:
    if spelling is None:
        return 0
    if not isinstance(spelling, str):
        raise ConfigError(f"{name} is {shown(spelling)}; write a duration such as 1s", path=name)
    return micros_from_spelling(spelling)


concurrency: Algorithm = Concurrency()
