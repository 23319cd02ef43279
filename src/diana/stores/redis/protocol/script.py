"""What runs inside the server: all charges of a request looked at first, written only if all pass.

The server speaks Lua 5.1, where every number is a double. So numbers stay whole and below 2**53; division goes by `fmod`, which is exact,
and never by `/` alone; and states are written digit by digit, because Lua's own way of writing a number keeps 14 digits and an exponent.

A counter is a string: the numbers of its state, joined by commas; or a sorted set, if its algorithm keeps a log (see `log_in_lua`). It
lives as long as it matters, `reset_after` and a grace.

`acquire` decides, see `acquire_in_lua`; the other scripts are small, see their comments.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import sha1
from typing import Any, NamedTuple

from diana.core.charge import WHOLE
from diana.core.contracts import Algorithm, Params, State
from diana.core.lease import why_not_leased
from diana.core.limit import Limit
from diana.core.log import Log, log_of, partial_log
from diana.core.meter import CounterSpec, LimitWithOptions, params_of_tiers
from diana.core.plugins import algorithms
from diana.stores.redis.protocol.acquire_in_lua import (
    ACQUIRE,
    IN_FULL,
    LIVE_FOR,
    OF_ONE_PLACE,
    PRELUDE,
)
from diana.stores.redis.protocol.lease_in_lua import LEASE, STALE
from diana.stores.redis.protocol.log_in_lua import LOG, LOG_AS_TEXT

GRACE_MS = 1_000
GIVEN_GRACE_MS = 3_600_000
"""The same where the time is given: how fast that clock goes, the server's cannot know."""
HELD_MS = 12_000
"""How long a place may be held until another slot has spoken: longer than the largest budget."""
TOO_LATE = -1
INT = 2**31
"""Numbers below this are written by `%d`, which is quicker than `%.0f`, and on some machines no wider."""
SHORT = 4_096
"""States up to this length are told with a denial, so that it can be remembered."""

READ = """
-- What is there, and what time it is: the first half of a compare-and-swap.
local answer = {redis.call('TIME')}
for place = 1, #KEYS do answer[place + 1] = read_counter(KEYS[place]) end
return answer
"""

SWAP = """
-- The second half. ARGV: the latest time at which it may still write, or ""; then for each key what it held ("" for nothing), what it
-- is to hold ("" to leave it, "-" for nothing), and for how many ms at least: it never lives shorter than it would have. Gives 1 if all
-- were as they were, and 0 and what is there if not.
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
  local after, life = ARGV[3 * place], tonumber(ARGV[3 * place + 1])
  life = string.format('%.0f', math.max(life, redis.call('PTTL', KEYS[place])))
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
local code, lists = string.match(ARGV[1], '^%["([^"]+)",(%[[%d,]*%].*)%]$')
local function fits(numbers)
  local _, count = string.gsub(numbers or '', '%d+', '')
  return numbers and count >= COUNTS[code][1] and count <= COUNTS[code][2]
end
local own, slowest = string.match(lists or '', '^%[([%d,]*)%],%[([%d,]*)%]$')
own = own or string.match(lists or '', '^%[([%d,]*)%]$')
if not COUNTS[code or ''] or not fits(own) or slowest and not fits(slowest) then
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


ARRIVALS = """
-- How often keys are asked for per second, summed over nodes. KEYS: what was said in even seconds, and in odd ones. ARGV: of each
-- key its name and how often. Gives the sums: of the second before, or of this one, if more was said in it.
local second = tonumber(redis.call('TIME')[1])
local now, before = KEYS[1 + second % 2], KEYS[2 - second % 2]
if redis.call('HGET', now, '') ~= tostring(second) then
  redis.call('DEL', now)
  redis.call('HSET', now, '', second)
end
local is_complete = redis.call('HGET', before, '') == tostring(second - 1)
local sums = {}
for place = 1, #ARGV, 2 do
  local sum = tonumber(redis.call('HGET', now, ARGV[place]) or 0) + tonumber(ARGV[place + 1])
  redis.call('HSET', now, ARGV[place], sum)
  local last = is_complete and tonumber(redis.call('HGET', before, ARGV[place]) or 0) or 0
  sums[#sums + 1] = math.max(sum, last)
end
redis.call('PEXPIRE', now, 5000)
return sums
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
        f"local TOO_LATE, SHORT, WHOLE, INT, HELD = {TOO_LATE}, {SHORT}, {WHOLE}, {INT}, {HELD_MS}"
    )
    choice = ["local function kernel_of(code)", *kernels, "end"]
    whole = ACQUIRE.replace("-- IN FULL", f"{LIVE_FOR}{LOG}{IN_FULL}").replace(
        "-- OF ONE PLACE", f"{LIVE_FOR}{OF_ONE_PLACE}"
    )
    return script("acquire", PRELUDE, constants, *choice, whole)


def lease_script(known: Iterable[Algorithm]) -> Script:
    """For all algorithms whose permits can be handed out in advance."""
    kernels = []
    for one in sorted(known, key=lambda one: one.code):
        if why_not_leased(one) is None:
            lua: Any = one
            end = getattr(one, "lua_lease_end", "nil").strip()
            kernels.append(f"if code == '{one.code}' then return {lua.lua.strip()}, {end} end")
    constants = (
        f"local GRACE = ARGV[1] == '' and {GRACE_MS} or {GIVEN_GRACE_MS}\n"
        f"local TOO_LATE, STALE, WHOLE = {TOO_LATE}, {STALE}, {WHOLE}"
    )
    choice = ["local function kernel_of(code)", *kernels, "end"]
    return script("lease", PRELUDE, constants, *choice, LEASE)


def _kernel(algorithm: Any) -> str:
    """The kernel; whether its state is a log; and its refund and its renewal, if it has them."""
    lua: str = algorithm.lua.strip()
    if not keeps_log(algorithm):
        return lua
    refund, renew = (
        getattr(algorithm, f"lua_{verb}", "nil").strip() for verb in ("refund", "renew")
    )
    return f"{lua}, true, {refund}, {renew}"


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
        script("arrivals", ARRIVALS),
        lease_script(algorithms().values()),
    )
    return {one.name: one for one in all_of_them}


def _counts(known: Iterable[Algorithm]) -> str:
    """How many numbers each algorithm's limits have: alone, and beside other tiers."""
    tiers: list[LimitWithOptions] = [(Limit(1, 1_000_000), {}), (Limit(2, 1_000_000), {})]
    counts = []
    for one in known:
        if getattr(one, "lua", None) is not None:
            alone = len(one.params(tiers[0][0]).numbers)
            beside: Any = params_of_tiers(one, tiers)[0]
            counts.append(f"['{one.code}'] = {{{alone}, {len(beside.numbers)}}}")
    return f"local COUNTS = {{{', '.join(sorted(counts))}}}"


def wire_limit(meter: CounterSpec) -> bytes | None:
    """A limit as `acquire` takes it: `["TB",[1,2,3]]`, the algorithm's code and its numbers; with other limits on the same counters,
    `["TB",[1,2,3],[1,2,4]]`, also those that say for how long a counter lives. None if it has no kernel in Lua, or is a limit of 0."""
    if getattr(meter.algorithm, "lua", None) is None or meter.denies_all:
        return None
    lists = [wire_numbers(meter.params), *map(wire_numbers, slowest_params(meter))]
    return f'["{meter.algorithm.code}",{",".join(lists)}]'.encode()


def wire_numbers(params: Any) -> str:
    return f"[{','.join(map(str, params.numbers))}]"


def slowest_params(meter: CounterSpec) -> tuple[Params, ...]:
    """By which a counter is forgotten, if its family has slower limits than this one; else nothing."""
    longest = None if meter.family is None else meter.family.longest
    if longest is None or keeps_log(meter.algorithm):
        return ()
    own, slowest = meter.params, longest.params
    # As an example: a full counter. What windows count is over at the same moment, whatever the limit.
    state, (_, _, _, reset_us, _) = meter.decide(None, own, own.limit, 0)
    return () if meter.decide(state, slowest, 0, 0)[1][3] == reset_us else (slowest,)


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
