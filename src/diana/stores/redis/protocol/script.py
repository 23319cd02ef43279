"""What runs inside the server: all charges of a request looked at first, written only if all pass.

The server speaks Lua 5.1, where every number is a double. So numbers stay whole and below 2**53; division goes by `fmod`, which is exact,
and never by `/` alone; and states are written digit by digit, because Lua's own way of writing a number keeps 14 digits and an exponent.

A counter is a string: the numbers of its state, joined by commas; or a sorted set, if its algorithm keeps a log (see `log_in_lua`). It
lives as long as it matters, `reset_after` and a grace.

`acquire` decides for many requests at once. Each is all or nothing by itself, and an error of one hurts no other.

    KEYS  the counters of the first request, then those of the second, ...
    ARGV  now in µs, or "" for the server's own time; the latest time at which it may still write, or ""; a tag if you like, `#` and
          anything, which is given back behind the time;
          then for each request: `take`, `hold` (a take that may be given back in a moment, because another slot of the cluster has a
          say in it too), `look` (nothing is written), `fill` (each counter takes as much of its cost as it has room for) or `refund`
          (logs only; a cost is then written `cost@when it was charged`);
          how many counters it has; and for each counter its limit (see `wire_limit`) and the cost
    gives now; then for each request a list, or a text if it failed: 1 or 0 (passed or not), five numbers per counter (an Outcome), and, if
          it was denied, the state of each counter that denied ("-" if it has none; "" for others, for states longer than SHORT, and
          where a place was held a moment ago, so that the denial may not last; of a log as much as it takes to deny again, see
          `state_from_wire`). Of a refund: 1.
          Past the latest time: now and -1, and nothing is written.

The other scripts are small: see their comments.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import sha1
from typing import Any, NamedTuple

from diana.core.charge import WHOLE
from diana.core.contracts import Algorithm, State
from diana.core.limit import Limit
from diana.core.log import Log, log_of, partial_log
from diana.core.meter import Meter, Terms, params_of_tiers
from diana.core.plugins import algorithms
from diana.stores.redis.protocol.log_in_lua import LOG, LOG_AS_TEXT

GRACE_MS = 1_000
GIVEN_GRACE_MS = 3_600_000
"""The same where the time is given: how fast that clock goes, the server's cannot know."""
HELD_MS = 12_000
"""How long a place may be held until another slot has spoken: longer than the largest budget."""
TOO_LATE = -1
SHORT = 4_096
"""States up to this length are told with a denial, so that it can be remembered."""

PRELUDE = """
local SECOND, NEVER = 1000000, -1
local fmod, format, call, decode = math.fmod, string.format, redis.call, cjson.decode

-- Whole division of what is not negative.
local function over(number, divisor)
  return (number - fmod(number, divisor)) / divisor
end

local function over_up(number, divisor)
  local rest = fmod(number, divisor)
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

ACQUIRE = """
local function write(key, state, reset)
  local count = #state
  for place = 1, count do
    local number = state[place]
    if number ~= number or number < 0 or number >= WHOLE then error('DIANA a state out of range') end
  end
  local text
  if count == 3 then
    text = format('%.0f,%.0f,%.0f', state[1], state[2], state[3])
  else
    local digits = {}
    for place = 1, count do digits[place] = format('%.0f', state[place]) end
    text = table.concat(digits, ',')
  end
  call('SET', key, text, 'PX', format('%.0f', over_up(reset, 1000) + GRACE))
  return text
end

-- Numbers joined by commas. The decoder of JSON reads them exactly, and in C.
local function numbers_of(text)
  return text and decode('[' .. text .. ']') or nil
end

local limits = {}
local function limit_of(text)
  local known = limits[text]
  if known then return known end
  known = decode(text)
  known.kernel, known.log, known.refund = kernel_of(known[1])
  known.params = known[2]
  if not known.kernel then error('DIANA there is no algorithm ' .. tostring(known[1])) end
  limits[text] = known
  return known
end

local function cost_of(text)
  local cost = string.match(text, '^%d+$') and tonumber(text)
  if not cost or cost >= WHOLE then
    error('DIANA a cost is a whole number, not ' .. tostring(text))
  end
  return cost
end

-- The ordinary case: one counter, and it passes. Nothing if it is not.
local function take_one(key, limit, cost, now)
  if cost == 0 then return end
  local before
  if limit.log then before = open_log(key) else before = numbers_of(call('GET', key)) end
  local after, passed, remaining, retry, reset, delay = limit.kernel(before, limit.params, cost, now)
  if passed == 0 then return end
  if limit.log then after.write(reset) else write(key, after, reset) end
  return {1, 1, remaining, retry, reset, delay}
end

-- All other cases. Its functions are made when it is called: the ordinary case does not pay for them.
local function decide_in_full(word, first, count, at, now)
  local function state_of(key, limit)
    if limit.log then return open_log(key) end
    local text = call('GET', key)
    return numbers_of(text), text
  end

  local function commit(key, limit, state, reset)
    if limit.log then return state.write(reset) end
    return write(key, state, reset)
  end

  -- Says that a place of this counter may be given back in a moment. In the same slot, and under the same namespace.
  local function held_key(key)
    return string.match(key, '^[%w_.-]*') .. ':held:{' .. key .. '}'
  end

  -- One denies, so the others show what they have without the charge; and in which state it denied is told.
  local function denied(word, first, count, at, now, answer, befores, afters, texts)
    answer[1] = 0
    for place = 1, count do
      local key, limit = KEYS[first + place], limit_of(ARGV[at + 2 * place - 2])
      local text, last = texts[place] or '-', 5 * place - 4
      if answer[last + 1] == 1 then
        local outcome = {limit.kernel(state_of(key, limit), limit.params, 0, now)}
        for number = 1, 5 do answer[last + number] = outcome[number + 1] end
        text = ''
      else
        if limit.log then text = befores[place].told() end
        if afters[place] and word ~= 'look' then text = commit(key, limit, afters[place], answer[last + 4]) or '' end
      end
      if #text > SHORT or (text ~= '' and call('GET', held_key(key))) then text = '' end
      answer[5 * count + 1 + place] = text
    end
    return answer
  end

  local function refund(first, count, at, now)
    for place = 1, count do
      local limit = limit_of(ARGV[at + 2 * place - 2])
      local cost, made = string.match(ARGV[at + 2 * place - 1], '^(%d+)@(%d+)$')
      if not cost or not limit.refund then error('DIANA this cannot be refunded by a script') end
      local log = open_log(KEYS[first + place])
      if log.newest then
        local after, reset = limit.refund(log, limit.params, cost_of(cost), tonumber(made), now)
        after.write(reset)
      end
    end
    return {1}
  end

  if word == 'refund' then return refund(first, count, at, now) end
  local answer, befores, afters, texts, allowed = {1, 0, 0, 0, 0, 0}, {}, {}, {}, true
  for place = 1, count do
    local limit, cost = limit_of(ARGV[at + 2 * place - 2]), cost_of(ARGV[at + 2 * place - 1])
    local kernel, params = limit.kernel, limit.params
    local key = KEYS[first + place]
    local before, text = state_of(key, limit)
    if word == 'fill' then
      local _, _, room = kernel(before, params, 0, now)
      cost = math.min(cost, room)
      if limit.log then before = open_log(key) end
    end
    local after, passed, remaining, retry, reset, delay = kernel(before, params, cost, now)
    if passed == 0 then allowed = false elseif cost == 0 then after = false end
    local last = 5 * place - 4
    answer[last + 1], answer[last + 2], answer[last + 3] = passed, remaining, retry
    answer[last + 4], answer[last + 5] = reset, delay
    befores[place], afters[place], texts[place] = before, after, text
  end
  if not allowed then return denied(word, first, count, at, now, answer, befores, afters, texts) end
  if word ~= 'look' then
    for place = 1, count do
      if afters[place] then
        commit(KEYS[first + place], limit_of(ARGV[at + 2 * place - 2]), afters[place], answer[5 * place])
      end
      if word == 'hold' then call('SET', held_key(KEYS[first + place]), '1', 'PX', HELD) end
    end
  end
  return answer
end

local function decide(word, first, count, at, now)
  if count == 1 and word == 'take' then
    local answer = take_one(KEYS[first + 1], limit_of(ARGV[at]), cost_of(ARGV[at + 1]), now)
    if answer then return answer end
  end
  return decide_in_full(word, first, count, at, now)
end

local now = tonumber(ARGV[1])
if not now and ARGV[1] ~= '' then return redis.error_reply('DIANA a time is a whole number, or empty') end
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local answers, at, first = {now}, 3, 0
if ARGV[3] and string.byte(ARGV[3]) == 35 then
  answers[2], at = ARGV[3], 4
end
local deadline = tonumber(ARGV[2])
if deadline and now > deadline then
  answers[#answers + 1] = TOO_LATE
  return answers
end

while at <= #ARGV do
  local word, count = ARGV[at], tonumber(ARGV[at + 1])
  if not count or not (word == 'take' or word == 'hold' or word == 'look' or word == 'fill' or word == 'refund') then
    return redis.error_reply('DIANA a request is take, hold, look, fill or refund and a number of counters, not ' .. tostring(word))
  end
  local fine, answer = pcall(decide, word, first, count, at + 2, now)
  if not fine then answer = type(answer) == 'table' and answer.err or tostring(answer) end
  answers[#answers + 1] = answer
  at, first = at + 2 + 2 * count, first + count
end
return answers
"""

READ = """
-- What is there, and what time it is: the first half of a compare-and-swap.
local answer = {redis.call('TIME')}
for place = 1, #KEYS do answer[place + 1] = read_counter(KEYS[place]) end
return answer
"""

SWAP = """
-- The second half. ARGV: the latest time at which it may still write, or ""; then for each key what it held ("" for nothing), what it
-- is to hold ("" to leave it, "-" for nothing), and for how many ms. Gives 1 if all were as they were, and 0 and what is there if not.
local time = redis.call('TIME')
local now, deadline = tonumber(time[1]) * 1000000 + tonumber(time[2]), tonumber(ARGV[1])
if deadline and now > deadline then return {TOO_LATE} end
local found, same = {0, time}, true
for place = 1, #KEYS do
  local there = read_counter(KEYS[place])
  found[place + 2] = there
  if (there or '') ~= ARGV[3 * place - 1] then same = false end
end
if not same then return found end
for place = 1, #KEYS do
  local after, life = ARGV[3 * place], ARGV[3 * place + 1]
  if after == '-' then
    redis.call('DEL', KEYS[place])
  elseif string.sub(after, 1, 1) == '~' then
    write_log(KEYS[place], after, life)
  elseif after ~= '' then
    redis.call('SET', KEYS[place], after, 'PX', life)
  end
end
return {1}
"""

RESET = """
-- Forget these counters. ARGV: the latest time at which it may still do so, or "". Gives how many there were, or -1 if it is too late.
local deadline = tonumber(ARGV[1] or '')
if deadline then
  local time = redis.call('TIME')
  if tonumber(time[1]) * 1000000 + tonumber(time[2]) > deadline then return TOO_LATE end
end
local gone = 0
for place = 1, #KEYS do gone = gone + redis.call('DEL', KEYS[place]) end
return gone
"""

INIT = """
-- Make a limit known, or change it, for all who look it up: KEYS the limit's own key, ARGV the limit as `acquire` takes it,
-- and for how many ms it is to be known.
-- What was counted stays: a counter is converted when it is next read.
local code, numbers = string.match(ARGV[1], '^%["([^"]+)",%[([%d,]*)%]%]$')
local _, count = string.gsub(numbers or '', '%d+', '')
if not code or not COUNTS[code] or count < COUNTS[code][1] or count > COUNTS[code][2] then
  return redis.error_reply('DIANA a limit is written ["CODE",[numbers]], with as many numbers as the algorithm has')
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return redis.status_reply('OK')
"""

BEAT = """
-- A node says that it lives. KEYS: the nodes by when they were last heard of, what they say of themselves, and what they weigh, with the
-- sum behind an empty name. ARGV: the node, what it says, after how many ms of silence a node is gone ("0": this node leaves), and its
-- weight. Gives how many there are, the time, and what they weigh together.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local silence = tonumber(ARGV[3])
local changed = false
local function forget(node)
  redis.call('ZREM', KEYS[1], node)
  redis.call('HDEL', KEYS[2], node)
  redis.call('HDEL', KEYS[3], node)
  changed = true
end
local function told()
  local nodes, known = redis.call('ZCARD', KEYS[1]), redis.call('HLEN', KEYS[3])
  if nodes == 0 then
    redis.call('DEL', KEYS[3])
    return {0, time, 0}
  end
  -- A node that knows of no weights weighs 1.
  if changed or known ~= nodes + 1 then
    local sum = 0
    for _, node in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do sum = sum + tonumber(redis.call('HGET', KEYS[3], node) or 1) end
    redis.call('HSET', KEYS[3], '', sum)
  end
  return {nodes, time, tonumber(redis.call('HGET', KEYS[3], '') or 0)}
end
if silence == 0 then
  forget(ARGV[1])
  return told()
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
if redis.call('HGET', KEYS[3], ARGV[1]) ~= ARGV[4] then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
  changed = true
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - silence))) do
  forget(gone)
end
for place = 1, #KEYS do redis.call('PEXPIRE', KEYS[place], 4 * silence) end
return told()
"""


OVERRIDE = """
-- KEYS: overrides, when each changed, when each is to be swept away, which counters were reset, when anything changed last.
-- ARGV: `set`, a field, what it is to hold ("": no longer), until when in ms ("": without end), and for how many ms what is gone is still
-- told of; or `forget` and a counter.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms, swept = math.floor(now / 1000), tonumber(ARGV[5])
redis.call('SET', KEYS[5], string.format('%.0f', now))
local function after_all_others(key)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  return string.format('%.0f', math.max(now, last and tonumber(last) + 1 or 0))
end
if ARGV[1] == 'forget' then
  redis.call('ZADD', KEYS[4], after_all_others(KEYS[4]), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now - swept * 1000))
  redis.call('PEXPIRE', KEYS[4], 2 * swept)
  return 1
end
for _, ended in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now_ms, 'LIMIT', 0, 100)) do
  redis.call('HDEL', KEYS[1], ended)
  redis.call('ZREM', KEYS[2], ended)
  redis.call('ZREM', KEYS[3], ended)
end
redis.call('ZREM', KEYS[3], ARGV[2])
local was = redis.call('HEXISTS', KEYS[1], ARGV[2])
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[2])
  redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms + swept), ARGV[2])
else
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  if ARGV[4] ~= '' then redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2]) end
end
redis.call('ZADD', KEYS[2], after_all_others(KEYS[2]), ARGV[2])
return was
"""

CHANGES = """
-- What has changed. KEYS as for `override`; ARGV: since when overrides, since when counters that were reset, and how many of each at most.
-- Gives of each override its field, when, and what it holds; of each counter its key and when; and how many overrides are told of in all.
local function since(key, when)
  return redis.call('ZRANGEBYSCORE', key, '(' .. when, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
end
local changed, told = since(KEYS[2], ARGV[1]), {}
for place = 1, #changed, 2 do
  told[#told + 1] = changed[place]
  told[#told + 1] = changed[place + 1]
  told[#told + 1] = redis.call('HGET', KEYS[1], changed[place]) or ''
end
return {told, since(KEYS[4], ARGV[2]), redis.call('ZCARD', KEYS[2])}
"""


class Script(NamedTuple):
    """A script and the name under which a server knows it."""

    name: str
    text: bytes
    sha: bytes


def script(name: str, *parts: str) -> Script:
    text = "\n".join(part.strip() for part in parts).encode()
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())


def acquire_script(known: Iterable[Algorithm]) -> Script:
    """One script for all algorithms that have a kernel in Lua."""
    kernels = [
        f"if code == '{one.code}' then return {_kernel(one)} end"
        for one in sorted(known, key=lambda one: one.code)
        if getattr(one, "lua", None)
    ]
    constants = (
        f"local GRACE = ARGV[1] == '' and {GRACE_MS} or {GIVEN_GRACE_MS}\n"
        f"local TOO_LATE, SHORT, WHOLE, HELD = {TOO_LATE}, {SHORT}, {WHOLE}, {HELD_MS}"
    )
    choice = ["local function kernel_of(code)", *kernels, "end"]
    return script("acquire", PRELUDE, constants, *choice, LOG, ACQUIRE)


def _kernel(algorithm: Any) -> str:
    """The kernel; whether its state is a log; and its refund, if it has one."""
    lua: str = algorithm.lua.strip()
    if not keeps_log(algorithm):
        return lua
    return f"{lua}, true, {getattr(algorithm, 'lua_refund', 'nil').strip()}"


def keeps_log(algorithm: Algorithm) -> bool:
    return bool(getattr(algorithm, "keeps_log", False))


@cache
def scripts() -> dict[str, Script]:
    """All by name."""
    all_of_them = (
        acquire_script(algorithms().values()),
        script("read", LOG_AS_TEXT, READ),
        script("swap", f"local TOO_LATE = {TOO_LATE}", LOG_AS_TEXT, SWAP),
        script("reset", f"local TOO_LATE = {TOO_LATE}", RESET),
        script("init", _counts(algorithms().values()), INIT),
        script("beat", BEAT),
        script("override", OVERRIDE),
        script("changes", CHANGES),
    )
    return {one.name: one for one in all_of_them}


def _counts(known: Iterable[Algorithm]) -> str:
    """How many numbers each algorithm's limits have: alone, and beside other tiers."""
    tiers: list[Terms] = [(Limit(1, 1_000_000), {}), (Limit(2, 1_000_000), {})]
    counts = []
    for one in known:
        if getattr(one, "lua", None) is not None:
            alone = len(one.params(tiers[0][0]).numbers)
            beside: Any = params_of_tiers(one, tiers)[0]
            counts.append(f"['{one.code}'] = {{{alone}, {len(beside.numbers)}}}")
    return f"local COUNTS = {{{', '.join(sorted(counts))}}}"


def wire_limit(meter: Meter) -> bytes | None:
    """A limit as `acquire` takes it: `["TB",[1,2,3]]`, the algorithm's code and its numbers. None if it has no kernel in Lua."""
    if getattr(meter.algorithm, "lua", None) is None:
        return None
    numbers: tuple[int, ...] = meter.params.numbers  # type: ignore[attr-defined]
    return f'["{meter.algorithm.code}",[{",".join(map(str, numbers))}]]'.encode()


def wire_state(state: State) -> bytes:
    """A log as `~` and (moment, how much) of each entry; `-` if there is nothing."""
    if isinstance(state, Log):
        entries = ",".join([f"{moment},{count}" for moment, count in state.entries()])
        return b"~" + entries.encode() if entries else b"-"
    return ",".join(map(str, state)).encode() or b"-"


def state_from_wire(text: bytes | None) -> State | None:
    """None also for what no counter of ours can be. Of a log that denied, only the oldest entries may be told, and behind a `;` the newest
    moment and how much there is besides."""
    try:
        if not text:
            return None
        if not text.startswith(b"~"):
            return tuple(map(int, text.split(b",")))
        told, _, rest = text[1:].partition(b";")
        numbers = iter(map(int, told.split(b",")))
        entries = zip(numbers, numbers, strict=False)
        if not rest:
            return log_of(entries)
        newest, more = map(int, rest.split(b","))
        return partial_log(entries, newest, more)
    except ValueError:
        return None
