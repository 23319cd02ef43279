"""All charges of a request in one script: looked at first, written only if all pass.

The script runs inside a server that speaks Lua 5.1 (Redis, Valkey), where every number is a double. So numbers stay whole and below 2**53;
division goes by `fmod`, which is exact, and never by `/` alone; and states are written digit by digit, because Lua's own way of writing a
number keeps 14 digits and an exponent.

A counter is a string: the numbers of its state, joined by commas. It lives as long as it matters, `reset_after` and a grace.

    KEYS  one per charge
    ARGV  now in µs, or "" for the server's own time; the latest time at which it may still write, or "";
          then for each charge: algorithm, cost, how many numbers follow, its limit's numbers
    gives now, whether all passed (1 or 0, or -1 if it was too late), and five numbers per charge: an Outcome
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha1
from typing import NamedTuple

from diana.core.charge import Charges
from diana.core.contracts import Algorithm
from diana.core.decision import Decision

GRACE_MS = 1_000
TOO_LATE = -1

PRELUDE = """
local SECOND, NEVER = 1000000, -1

-- Whole division of what is not negative.
local function over(number, divisor)
  return (number - math.fmod(number, divisor)) / divisor
end

local function over_up(number, divisor)
  local rest = math.fmod(number, divisor)
  if rest == 0 then return number / divisor end
  return (number - rest) / divisor + 1
end

-- number * factor / divisor, rounded up, though the product may be far beyond 2^53: bit by bit.
local function times_over_up(number, factor, divisor)
  local whole, rest = over(number, divisor) * factor, math.fmod(number, divisor)
  local bits = {}
  while factor > 0 do
    bits[#bits + 1] = math.fmod(factor, 2)
    factor = over(factor, 2)
  end
  local quotient, remainder = 0, 0
  for place = #bits, 1, -1 do
    quotient, remainder = quotient * 2, remainder * 2
    if remainder >= divisor then quotient, remainder = quotient + 1, remainder - divisor end
    if bits[place] == 1 then
      remainder = remainder + rest
      if remainder >= divisor then quotient, remainder = quotient + 1, remainder - divisor end
    end
  end
  return whole + quotient + (remainder > 0 and 1 or 0)
end
"""

DRIVER = """
local function read(text)
  if not text then return nil end
  local state = {}
  for number in string.gmatch(text, '[^,]+') do state[#state + 1] = tonumber(number) end
  return state
end

local function write(key, state, reset)
  local digits = {}
  for place = 1, #state do
    local number = state[place]
    if number ~= number or number < 0 or number >= 9007199254740992 then
      return redis.error_reply('DIANA a state out of range')
    end
    digits[place] = string.format('%.0f', number)
  end
  redis.call('SET', key, table.concat(digits, ','), 'PX', string.format('%.0f', over_up(reset, 1000) + GRACE))
end

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local deadline = tonumber(ARGV[2])
if deadline and now > deadline then return {now, TOO_LATE} end

local charges, allowed, at = {}, 1, 3
for place = 1, #KEYS do
  local charge = {kernel = KERNELS[ARGV[at]], cost = tonumber(ARGV[at + 1]), params = {}}
  local count = tonumber(ARGV[at + 2])
  for number = 1, count do charge.params[number] = tonumber(ARGV[at + 2 + number]) end
  at = at + 3 + count
  charge.before = read(redis.call('GET', KEYS[place]))
  charge.outcome = {charge.kernel(charge.before, charge.params, charge.cost, now)}
  if charge.outcome[2] == 0 then allowed = 0 end
  charges[place] = charge
end

local answer = {now, allowed}
for place, charge in ipairs(charges) do
  local outcome = charge.outcome
  local denied = outcome[2] == 0
  if outcome[1] and ((allowed == 1 and charge.cost > 0) or denied) then
    local failed = write(KEYS[place], outcome[1], outcome[5])
    if failed then return failed end
  elseif allowed == 0 and not denied then
    outcome = {charge.kernel(charge.before, charge.params, 0, now)}
  end
  for number = 2, 6 do answer[#answer + 1] = outcome[number] end
end
return answer
"""


class Script(NamedTuple):
    """A script and the name under which a server knows it."""

    text: str
    sha: str


class Answered(NamedTuple):
    now: int
    passed: int
    decisions: list[Decision]


def acquire_script(algorithms: Iterable[Algorithm]) -> Script:
    """One script for all algorithms that have a kernel in Lua."""
    found = {algorithm.code: getattr(algorithm, "lua", None) for algorithm in algorithms}
    kernels = [f"KERNELS['{code}'] = {lua.strip()}" for code, lua in sorted(found.items()) if lua]
    constants = f"local GRACE, TOO_LATE = {GRACE_MS}, {TOO_LATE}\nlocal KERNELS = {{}}"
    text = "\n".join([PRELUDE.strip(), constants, *kernels, DRIVER.strip()])
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def arguments(charges: Charges, now: int | None, deadline: int | None = None) -> list[str | int]:
    """ARGV for these charges; the keys go before them."""
    argv: list[str | int] = ["" if now is None else now, "" if deadline is None else deadline]
    for meter, _, cost in charges:
        numbers: tuple[int, ...] = meter.params.numbers  # type: ignore[attr-defined]
        argv += [meter.algorithm.code, cost, len(numbers), *numbers]
    return argv


def answered(reply: Sequence[int], charges: Charges) -> Answered:
    """The decisions in a reply; none if it was too late."""
    now, passed, *numbers = reply
    decisions = []
    for place, (meter, key, cost) in enumerate(charges if passed != TOO_LATE else ()):
        allowed, *rest = numbers[5 * place : 5 * place + 5]
        remaining, retry_us, reset_us, delay_us = rest
        outcome = (allowed == 1, remaining, retry_us, reset_us, delay_us)
        decisions.append(Decision(outcome, meter.params.limit, key, cost, now))
    return Answered(now, passed, decisions)
