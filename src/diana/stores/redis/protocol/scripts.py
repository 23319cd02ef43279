"""What runs inside the server: all charges of a request looked at first, written only if all pass.

The server speaks Lua 5.1, where every number is a double. So numbers stay whole and below 2**53; division goes by `fmod`, which is exact,
and never by `/` alone; and states are written digit by digit, because Lua's own way of writing a number keeps 14 digits and an exponent.

A counter is a string: the numbers of its state, joined by commas; or a sorted set, if its algorithm keeps a log (see `log_in_lua`). It
lives as long as it matters, `reset_after` and a grace.

`acquire` decides, see `acquire_in_lua`; the other scripts are small, see their comments.

The script that decides, `acquire`: many requests at once, each all or nothing by itself, and an error of one hurts no other.

    KEYS  the counters of the first request, then those of the second, ...
    ARGV  now in µs, or "" for the server's own time; the latest time at which it may still write, or ""; a tag if you like, `#` and
          anything, which is given back behind the time;
          then for each request: `take`, `hold` (a take that may be given back in a moment, because another slot of the cluster has a
          say in it too), `look` (nothing is written), `fill` (each counter takes as much of its cost as it has room for) or `refund`
          (logs only; a cost is then written `cost@when it was charged`) or `renew` (places only; likewise);
          how many counters it has; and for each counter its limit (see `wire_limit`) and the cost.
          In short, a take of costs of 1: how many counters it has, and each one's limit; and of a single counter its limit alone
    gives now; then for each request a list, or a text if it failed: 1 or 0 (passed or not), five numbers per counter (an Outcome), and, if
          it was denied or looked at, the state of each counter ("-" if it has none; "" if it is longer than SHORT, and if it denied and
          a place was held a moment ago, so that the denial may not last; of a log as much as it takes to deny again, see
          `state_from_wire`). Of a refund: 1; of a renewal: 1, and of each counter the place's moment, 0 if it is lost.
          Past the latest time: now and -1, and nothing is written.

A script runs from its first line on every call, and a function costs something when its line is reached, most of all for each variable
outside that it uses. So the ordinary case, a take of counters without a log that all pass, is decided in the loop itself, with hardly a
function; and all that other cases need is made when the first of them comes.

The pool of leases inside the server: `leases.pool.answer` in Lua.

    KEYS  a counter; and who holds what of it
    ARGV  now in µs, or "" for the server's own time; the latest time at which it may still write, or ""; a tag, `#` and anything, which
          is given back behind the time; the algorithm's code; the numbers of its limit, and of the same uncapped, each as a JSON list;
          the node ("": a charge without a lease), `1` to write or `0` to look; and in whole numbers: cost, seq, base, used, keep, want,
          start, refill, ttl in µs, for how many ms what is held matters, and the most that can ever pass; and the numbers of the slowest
          limit that counts on it, or ""
    gives now, the tag, and the eight numbers of a Grant; -3 and zeros, if a later ask of this node was answered before; -1 past the latest
          time, and nothing is written

What is held is a hash: of each node `seq,base,used,held,expires,ends`, and behind an empty name `held by all,the earliest of all ends,when
a node last asked`. So nodes are looked at one by one only when one has come to its end, however many there are.

A Log inside the server: a sorted set, so that a decision costs the same at any length.

An entry's score is its moment, and its member says `serial:through:count`: its number, how much was admitted up to and with it since its
block began, and how much at this moment. So what lies between two entries is a subtraction, and the n-th is found by halving.

    score      member
    -3101      b1               how much was admitted before block 1 began is 3100
    17…001     254:3090:10      block 0: serials 0 to 255
    17…007     255:3100:10
    17…009     256:1:1          block 1: counted from its own beginning

A refund in the middle has to change what stands behind it: the rest of its block, and one number for each later block, instead of
all later entries. Block numbers have scores below 0, so no question for moments finds them.

A kernel is given a draft. Its changes are written when all charges of the request pass, and only then; `strike`, which only a
refund calls, is done at once. What has expired counts no more at once, and is removed with the next write, a bounded number at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import sha1
from typing import Any, NamedTuple

from diana.core.charge import WHOLE
from diana.core.contracts import Algorithm, Params, State
from diana.core.counter import CounterSpec, LimitWithOptions, params_of_tiers
from diana.core.entry_log import Log, log_of, partial_log
from diana.core.limit import Limit
from diana.core.settings import why_not_leased
from diana.runtime.entry_points import algorithms

PRELUDE = """
local SECOND, NEVER, UNKNOWN = 1000000, -1, -2
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

LIVE_FOR = """
-- A key that is there lives for so long from now at least: never shorter than another limit has asked for.
local function live_for(key, reset)
  local life = over_up(reset, 1000) + GRACE
  if call('PTTL', key) < life then call('PEXPIRE', key, format('%.0f', life)) end
end
"""

IN_FULL = """
local function cost_of(text)
  local cost = string.match(text, '^%d+$') and tonumber(text)
  if not cost or cost >= WHOLE then
    error('DIANA a cost is a whole number, not ' .. tostring(text))
  end
  return cost
end

local function state_of(key, limit)
  if limit.log then return open_log(key) end
  local text = call('GET', key)
  return text and decode('[' .. text .. ']') or nil, text
end

local function commit(key, limit, state, reset)
  if limit.log then return state.write(reset) end
  local text, life = text_and_life(key, limit, state, reset)
  call('SET', key, text, 'PX', life)
  return text
end

-- Says that a place of this counter may be given back in a moment. In the same slot, and under the same namespace.
local function held_key(key)
  return string.match(key, '^[%w_.-]*') .. ':held:{' .. key .. '}'
end

-- In which state a counter was found, for a deny cache: "-" if there was none.
local function told(limit, text, draft)
  return limit.log and draft.told() or text or '-'
end

-- What a counter has without the charge, and its state.
local function unpaid(key, limit)
  local before, text = state_of(key, limit)
  local outcome = {limit[1](before, limit[2], 0, now)}
  return outcome, told(limit, text, before)
end

-- One denies, so the others show what they have without the charge; and in which states they all were is told.
local function denied(word, first, charged, answer, befores, afters, texts)
  local count = #charged
  answer[1] = 0
  for place = 1, count do
    local key, limit, last = KEYS[first + place], charged[place], 5 * place - 4
    local text
    if answer[last + 1] == 1 then
      local outcome
      outcome, text = unpaid(key, limit)
      for number = 1, 5 do answer[last + number] = outcome[number + 1] end
    else
      text = told(limit, texts[place], befores[place])
      if word ~= 'look' then
        local reset = answer[last + 4]
        if afters[place] then
          text = commit(key, limit, afters[place], reset) or ''
        elseif call('PTTL', key) < over_up(reset, 1000) then
          live_for(key, reset)  -- a faster limit charged it last
        end
      end
      -- The denial may not last if a place was held a moment ago.
      if text ~= '' and call('GET', held_key(key)) then text = '' end
    end
    answer[5 * count + 1 + place] = #text > SHORT and '' or text
  end
  return answer
end

-- Give back, or renew, what was taken at some moment.
local function revise(word, first, charged, costs)
  local answer = {1}
  for place = 1, #charged do
    local limit = charged[place]
    local cost, made = string.match(costs[place], '^(%d+)@(%d+)$')
    if not cost or not limit[word] then error('DIANA no script can ' .. word .. ' this') end
    local log = open_log(KEYS[first + place])
    if log.newest or word == 'renew' then
      local after, reset, moment = limit[word](log, limit[2], cost_of(cost), tonumber(made), now)
      after.write(reset)
      answer[#answer + 1] = moment
    end
  end
  return answer
end

return function(word, first, count, from, stride)
  local charged, costs = {}, {}
  for place = 1, count do
    local text = ARGV[from + stride * place]
    charged[place], costs[place] = limits[text] or learn(text), stride == 1 and '1' or ARGV[from + stride * place + 1]
  end
  if word == 'refund' or word == 'renew' then return revise(word, first, charged, costs) end
  local answer, befores, afters, texts, allowed = {1, 0, 0, 0, 0, 0}, {}, {}, {}, true
  for place = 1, count do
    local key, limit, cost = KEYS[first + place], charged[place], cost_of(costs[place])
    local kernel, params = limit[1], limit[2]
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
  if not allowed then return denied(word, first, charged, answer, befores, afters, texts) end
  for place = 1, count do
    if word == 'look' then
      local _, text = unpaid(KEYS[first + place], charged[place])
      answer[5 * count + 1 + place] = #text > SHORT and '' or text
    else
      if afters[place] then commit(KEYS[first + place], charged[place], afters[place], answer[5 * place]) end
      if word == 'hold' then call('SET', held_key(KEYS[first + place]), '1', 'PX', HELD) end
    end
  end
  return answer
end
"""

OF_ONE_PLACE = """
-- A place taken or given back in the ordinary way: nothing has expired, and nothing behind it is to be changed. Nothing if it is not so:
-- then the log decides, of which this is the layout (see `log_in_lua`).
local function entry_of(found)
  local serial, through, count = string.match(found[1], '^(%d+):(%d+):(%d+)$')
  return tonumber(serial), tonumber(through), tonumber(count), tonumber(found[2])
end

return function(word, key, params, text)
  local most, hold, former, ends = params[1], params[2], params[4], params[5]
  if former and now < ends then hold = former end
  local cost, made = string.match(text, '^([1-9]%d*)@?(%d*)$')
  cost, made = tonumber(cost), tonumber(made)
  if not cost or cost > most or (word == 'refund') ~= (made ~= nil) then return end
  local newest = try('ZRANGE', key, -1, -1, 'WITHSCORES')
  if newest.err then return end
  if not newest[1] then
    if word == 'refund' then return {1} end
    local digits = format('%.0f', cost)
    call('ZADD', key, now_text, '0:' .. digits .. ':' .. digits)
    live_for(key, hold)
    return {1, 1, most - cost, 0, hold, 0}
  end
  local oldest = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local from, from_through, from_count, from_moment = entry_of(oldest)
  local to, to_through, to_count, to_moment = entry_of(newest)
  if not from or from_moment <= now - hold or to_moment - now > SECOND or over(from, 256) ~= over(to, 256) then return end
  if word == 'take' then
    local amount = to_through - from_through + from_count + cost
    if amount > most or fmod(to + 1, 256) == 0 then return end
    local moment = to_moment >= now and to_moment + 1 or now
    local member = format('%.0f:%.0f:%.0f', to + 1, to_through + cost, cost)
    call('ZADD', key, format('%.0f', moment), member)
    live_for(key, moment + hold - now)
    return {1, 1, most - amount, 0, moment + hold - now, 0}
  end
  local struck = made == to_moment and newest[1] or made == from_moment and oldest[1]
  if not struck or cost < (made == to_moment and to_count or from_count) then return end
  call('ZREM', key, struck)
  return {1}
end
"""

ACQUIRE = """
local KEYS, ARGV, try = KEYS, ARGV, redis.pcall
local now, now_text = tonumber(ARGV[1]), nil
if now then
  now_text = format('%.0f', now)
elseif ARGV[1] == '' then
  local time = call('TIME')
  now, now_text = time[1] * 1000000 + time[2], time[1] .. format('%06d', time[2])
else
  return redis.error_reply('DIANA a time is a whole number, or empty')
end
local answers, said, at, first
if ARGV[3] and string.byte(ARGV[3]) == 35 then
  answers, said, at, first = {now, ARGV[3]}, 2, 4, 0
else
  answers, said, at, first = {now}, 1, 3, 0
end
local deadline = tonumber(ARGV[2])
if deadline and now > deadline then
  answers[said + 1] = TOO_LATE
  return answers
end

-- By its text: its kernel and its numbers; of one that keeps a log also `log` and how it is refunded.
local limits = {}
local function learn(text)
  local limit = decode(text)
  local kernel, log, refund, renew = kernel_of(limit[1])
  if not kernel then error('DIANA there is no algorithm ' .. tostring(limit[1])) end
  limit[1] = kernel
  if log then limit.log, limit.refund, limit.renew = log, refund, renew end
  limits[text] = limit
  return limit
end

local function learn_once(text) return limits[text] or learn(text) end

-- What a charge comes to where no log is kept. The decoder of JSON reads numbers exactly, and in C.
local function weigh(key, text, cost)
  local limit = limits[text] or learn(text)
  if limit.log then return end
  local state = call('GET', key)
  return limit[1](state and decode('[' .. state .. ']') or nil, limit[2], cost, now)
end

-- A state as it is written, and for how many ms: as long as the slowest limit that counts on it needs, and never shorter than another
-- limit has asked for. `%d` is quicker than `%.0f`, but on some servers narrower.
local function text_and_life(key, limit, state, reset)
  if limit[3] then
    local _, _, _, _, slowest = limit[1](state, limit[3], 0, now)
    if slowest > reset then reset = slowest end
  end
  local count, life, left = #state, over_up(reset, 1000) + GRACE, call('PTTL', key)
  if left > life then life = left end
  life = format(life < INT and '%d' or '%.0f', life)
  if count == 3 and state[2] == now then
    local one, three = state[1], state[3]
    if one >= 0 and one < INT and three >= 0 and three < INT then
      return format('%d,%s,%d', one, now_text, three), life
    end
  end
  local digits = {}
  for place = 1, count do
    local number = state[place]
    if number ~= number or number < 0 or number >= WHOLE then error('DIANA a state out of range') end
    digits[place] = format('%.0f', number)
  end
  return table.concat(digits, ','), life
end

local last, decide_in_full, of_one_place = #ARGV, nil, nil
while at <= last do
  -- The limit of each place is at `from + stride * place`, and its cost behind it, if it is not 1.
  local word, count, from, stride = ARGV[at], nil, at, 1
  if string.byte(word) == 91 then
    word, count, from = 'take', 1, at - 1
  else
    count = tonumber(word)
    if count then
      word = 'take'
    elseif word == 'take' or word == 'hold' or word == 'look' or word == 'fill' or word == 'refund' or word == 'renew' then
      count, stride = tonumber(ARGV[at + 1]), 2
    end
    if not count or count < 0 then
      return redis.error_reply('DIANA a request is take, hold, look, fill, refund or renew and how many counters, not ' .. tostring(word))
    end
  end
  local answer, afters
  if word == 'take' then
    for place = 1, count do
      local cost = 1
      if stride == 2 then cost = tonumber(string.match(ARGV[from + 2 * place + 1] or '', '^[1-9]%d*$')) end
      local fine, after, passed, remaining, retry, reset, delay
      if cost and cost < WHOLE then
        fine, after, passed, remaining, retry, reset, delay = pcall(weigh, KEYS[first + place], ARGV[from + stride * place], cost)
      end
      if not fine or not after or passed == 0 then
        answer = nil
        break
      elseif place == 1 then
        answer, afters = {1, 1, remaining, retry, reset, delay}, {after}
      else
        local before = 5 * place - 4
        answer[before + 1], answer[before + 2], answer[before + 3] = 1, remaining, retry
        answer[before + 4], answer[before + 5], afters[place] = reset, delay, after
      end
    end
  end
  local done
  if not answer and count == 1 and (word == 'take' or word == 'refund') then
    local known, limit = pcall(learn_once, ARGV[from + stride])
    if known and limit.renew then
      of_one_place = of_one_place or (function()
-- OF ONE PLACE
      end)()
      local fine, found = pcall(of_one_place, word, KEYS[first + 1], limit[2], stride == 2 and ARGV[from + 3] or '1')
      if fine then done = found end
    end
  end
  if answer then
    for place = 1, count do
      local key = KEYS[first + place]
      local fine, text, life = pcall(text_and_life, key, limits[ARGV[from + stride * place]], afters[place], answer[5 * place])
      local failure = text
      if fine then failure = try('SET', key, text, 'PX', life).err end
      if failure then
        answer = failure
        break
      end
    end
  elseif done then
    answer = done
  else
    decide_in_full = decide_in_full or (function()
-- IN FULL
    end)()
    local fine
    fine, answer = pcall(decide_in_full, word, first, count, from, stride)
    if not fine then answer = type(answer) == 'table' and answer.err or tostring(answer) end
  end
  said = said + 1
  answers[said] = answer
  at, first = from + stride * (count + 1), first + count
end
return answers
"""


STALE = -3

LEASE = """
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local deadline = tonumber(ARGV[2])
if deadline and now > deadline then return {now, ARGV[3], TOO_LATE} end

local kernel, window_end = kernel_of(ARGV[4])
if not kernel then return redis.error_reply('DIANA there is no leased algorithm ' .. ARGV[4]) end
local params, uncapped = decode(ARGV[5]), decode(ARGV[6])
local node, writes = ARGV[7], ARGV[8] == '1'
local cost, seq, base, used = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local keep, want, start, refill = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16])
local ttl, life, limit = tonumber(ARGV[17]), tonumber(ARGV[18]), tonumber(ARGV[19])
local slowest = ARGV[20] ~= '' and decode(ARGV[20])

local function numbers_of(text)
  return text and decode('[' .. text .. ']') or nil
end

local function text_of(numbers)
  local digits = {}
  for place = 1, #numbers do
    local number = numbers[place]
    if number ~= number or number < 0 or number >= WHOLE then error('DIANA a state out of range') end
    digits[place] = format('%.0f', number)
  end
  return table.concat(digits, ',')
end

local state = numbers_of(call('GET', KEYS[1]))
local changed, touched, gone = false, false, {}

-- What was admitted is counted, also above a limit that was lowered meanwhile.
local function count(amount)
  if amount == 0 then return end
  local _, _, room = kernel(state, uncapped, 0, now)
  amount = math.min(amount, room)
  if amount > 0 then
    state = kernel(state, uncapped, amount, now)
    changed = true
  end
end

local sums = numbers_of(call('HGET', KEYS[2], ''))
local total, earliest, last = 0, WHOLE - 1, now
if sums then total, earliest, last = sums[1], sums[2], sums[3] end
local back = last - now
local moved = {}
if back > SECOND then last = now end
if sums and (now >= earliest or back > SECOND) then
  local all, swept = call('HGETALL', KEYS[2]), 0
  total, earliest, touched = 0, WHOLE - 1, true
  for place = 1, #all, 2 do
    if all[place] ~= '' then
      local one = numbers_of(all[place + 1])
      if back > SECOND then
        one[5], one[6] = math.max(1, one[5] - back), 0
        moved[all[place]] = one
      end
      if one[6] > 0 and one[6] <= now then
        gone[all[place]] = true
      elseif one[5] <= now then
        swept = swept + one[4]
        gone[all[place]] = true
      else
        total = total + one[4]
        earliest = math.min(earliest, one[5])
        if one[6] > 0 then earliest = math.min(earliest, one[6]) end
      end
    end
  end
  count(swept)
end

local mine
if node ~= '' and not gone[node] then mine = moved[node] or numbers_of(call('HGET', KEYS[2], node)) end
local stale, kept, leaves = false, 0, false
if mine then
  stale = seq <= mine[1]
  if not stale then
    local delta = mine[4]
    if base == mine[1] then
      delta = math.min(used, mine[4])
    elseif base == mine[2] then
      delta = math.min(math.max(0, used - mine[3]), mine[4])
    end
    kept = math.min(keep, mine[4] - delta)
    count(delta)
    total = total - mine[4]
  end
end

local function time_until(others, amount)
  if amount > limit then return NEVER end
  local _, passed, _, retry = kernel(state, params, others + amount, now)
  if passed == 1 then return 0 end
  return retry == NEVER and ttl or retry
end

local grant
local denies_until = -WHOLE
if stale then
  grant = {now, ARGV[3], STALE, 0, 0, 0, 0, 0, 0, 0}
else
  local held = total + kept
  local _, _, remaining, _, reset = kernel(state, params, 0, now)
  local room, retry = remaining - held, 0
  local passed = cost == 0 or cost <= room
  if not passed then
    retry = time_until(held, cost)
    denies_until = over_up(reset, 1000)
  elseif cost > 0 then
    local after, _, _, _, until_reset = kernel(state, params, cost, now)
    state, reset, room, changed = after, until_reset, room - cost, true
  end
  local askers = call('HLEN', KEYS[2])
  if sums then askers = askers - 1 end
  for _ in pairs(gone) do askers = askers - 1 end
  if mine then askers = askers - 1 end
  local ends = window_end and window_end(state, params, now)
  local valid, granted = ends and math.min(ttl, ends - now) or ttl, 0
  if node ~= '' and want > 0 then
    askers = askers + 1
    local most = start
    if mine then most = math.max(1, over(refill, askers)) end
    if passed then
      granted = math.max(0, math.min(want, most, room))
      if granted == 0 then retry = time_until(held, 1) end
    end
  end
  if node ~= '' then
    touched, last = true, now
    gone[node] = nil
    moved[node] = nil
    if want > 0 or kept > 0 then
      total = held + granted
      earliest = math.min(earliest, now + ttl, ends or WHOLE - 1)
      if writes then call('HSET', KEYS[2], node, text_of({seq, base, used, kept + granted, now + ttl, ends or 0})) end
    else
      total = held
      gone[node] = true
    end
  end
  grant = {now, ARGV[3], passed and 1 or 0, granted, kept, valid, math.max(0, room - granted), retry, reset, askers}
end

if writes then
  for name in pairs(gone) do call('HDEL', KEYS[2], name) end
  for name, one in pairs(moved) do
    if not gone[name] then call('HSET', KEYS[2], name, text_of(one)) end
  end
  if touched then
    if call('HLEN', KEYS[2]) > (sums and 1 or 0) then
      call('HSET', KEYS[2], '', text_of({total, earliest, last}))
      life = life + GRACE
      if call('PTTL', KEYS[2]) < life then call('PEXPIRE', KEYS[2], format('%.0f', life)) end
    else
      call('DEL', KEYS[2])
    end
  end
  if changed then
    local _, _, _, _, reset = kernel(state, params, 0, now)
    if slowest then
      local _, _, _, _, longer = kernel(state, slowest, 0, now)
      reset = math.max(reset, longer)
    end
    local lives = math.max(over_up(reset, 1000) + GRACE, call('PTTL', KEYS[1]))
    call('SET', KEYS[1], text_of(state), 'PX', format('%.0f', lives))
  elseif denies_until > call('PTTL', KEYS[1]) then
    call('PEXPIRE', KEYS[1], format('%.0f', denies_until + GRACE))  -- a faster limit charged it last
  end
end
return grant
"""


LOG = """
local function open_log(key)
  local BLOCK, STEP, TOLD = 256, 128, 64
  local log = {}
  local newest, first, cut, clamped, added, asked
  local spoilt, emptied, released = false, false, false
  local bases = {[0] = 0}

  local function digits(number) return format('%.0f', number) end

  local function entry_of(found)
    local serial, through, count = string.match(found[1] or '', '^(%d+):(%d+):(%d+)$')
    if not serial then return nil end
    serial = tonumber(serial)
    return {member = found[1], moment = tonumber(found[2]), serial = serial, block = over(serial, BLOCK),
      through = tonumber(through), count = tonumber(count)}
  end

  local function at_rank(rank) return entry_of(call('ZRANGE', key, rank, rank, 'WITHSCORES')) end

  local function base_of(block)
    if not bases[block] then bases[block] = -tonumber(call('ZSCORE', key, 'b' .. digits(block))) - 1 end
    return bases[block]
  end

  -- How much was admitted after one entry, up to and with a later one.
  local function between(one, other)
    if one.block == other.block then return other.through - one.through end
    return base_of(other.block) + other.through - base_of(one.block) - one.through
  end

  local function add(before, moment, count)
    if moment ~= moment or moment < 0 or moment >= WHOLE or count >= WHOLE then error('DIANA a log out of range') end
    local serial, through = 0, count
    if before then
      serial = before.serial + 1
      if fmod(serial, BLOCK) == 0 then
        local block = over(serial, BLOCK)
        bases[block] = base_of(before.block) + before.through
        call('ZADD', key, digits(-bases[block] - 1), 'b' .. digits(block))
        if first then call('ZREMRANGEBYSCORE', key, '(' .. digits(-base_of(first.block) - 1), '(0') end
      else
        through = before.through + count
      end
    end
    local member = digits(serial) .. ':' .. digits(through) .. ':' .. digits(count)
    call('ZADD', key, digits(moment), member)
    return {member = member, moment = moment, serial = serial, block = over(serial, BLOCK), through = through, count = count}
  end

  local function load()
    local found = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
    if found.err then
      -- A text is what an earlier version has written; anything else is another program's.
      if type(redis.pcall('GET', key)) == 'table' then error(found) end
      found, spoilt = {}, true
    end
    newest = entry_of(found)
    log.newest = newest and newest.moment
  end

  function log.clamp(moment)
    if newest and newest.moment > moment then clamped, log.newest = moment, moment end
  end

  function log.drop(moment)
    cut, first, log.amount = moment, nil, 0
    if not newest then return end
    if log.newest <= moment then
      log.newest, newest, emptied = nil, nil, true
      return
    end
    local from = moment < 0 and '0' or '(' .. digits(moment)
    first = entry_of(call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
    log.amount = between(first, newest) + first.count
  end

  function log.nth(number)
    local found
    if number <= first.count then
      found = first
    elseif number > log.amount - newest.count then
      found = newest
    else
      local low = call('ZCOUNT', key, '-inf', '(' .. digits(first.moment))
      local high = low + call('ZCOUNT', key, digits(first.moment), '+inf') - 1
      while low < high do
        local middle = over(low + high, 2)
        if first.count + between(first, at_rank(middle)) >= number then high = middle else low = middle + 1 end
      end
      found = at_rank(low)
    end
    asked = found
    return clamped and math.min(found.moment, clamped) or found.moment
  end

  function log.append(moment, count)
    added, log.newest, log.amount = {moment, count}, moment, log.amount + count
  end

  -- The clock was set back: what is later is one entry, as of now.
  local function write_clamped()
    local earlier = call('ZCOUNT', key, '-inf', '(' .. digits(clamped))
    local before = earlier > 0 and at_rank(earlier - 1) or nil
    local count = before and between(before, newest) or between(first, newest) + first.count
    if before then
      call('ZREMRANGEBYSCORE', key, digits(clamped), '+inf')
    else
      call('DEL', key)
      first, bases = nil, {[0] = 0}
    end
    newest, clamped = add(before, clamped, count), nil
  end

  local function remove_expired()
    local gone = cut < 0 and 0 or call('ZCOUNT', key, '0', digits(cut))
    if gone == 0 then return end
    local last = digits(cut)
    if gone > STEP then last = call('ZRANGEBYSCORE', key, '0', last, 'WITHSCORES', 'LIMIT', STEP - 1, 1)[2] end
    call('ZREMRANGEBYSCORE', key, '0', last)
  end

  function log.write(reset)
    if spoilt or emptied then call('DEL', key) end
    if released and not added then return end
    if newest then
      if clamped then write_clamped() end
      remove_expired()
    end
    if added then
      local moment, count = added[1], added[2]
      if newest and newest.moment == moment then
        call('ZREM', key, newest.member)
        local before = {serial = newest.serial - 1, block = newest.block, through = newest.through - newest.count}
        count = count + newest.count
        if fmod(newest.serial, BLOCK) == 0 then
          call('ZADD', key, digits(moment), digits(newest.serial) .. ':' .. digits(count) .. ':' .. digits(count))
        else
          add(before, moment, count)
        end
      else
        add(newest, moment, count)
      end
    end
    live_for(key, reset)
  end

  function log.strike(moment, count)
    if not newest then return end
    if clamped then
      write_clamped()
      log.drop(cut)
    end
    if moment <= cut then return end
    local struck = entry_of(call('ZRANGEBYSCORE', key, digits(moment), digits(moment), 'WITHSCORES'))
    count = struck and math.min(count, struck.count) or 0
    if count == 0 then return end
    local old, new = {struck.member}, {}
    if count < struck.count then
      new = {digits(moment), format('%.0f:%.0f:%.0f', struck.serial, struck.through - count, struck.count - count)}
    end
    local later = call('ZRANGEBYSCORE', key, '(' .. digits(moment), '+inf', 'WITHSCORES', 'LIMIT', 0, BLOCK)
    for place = 1, #later, 2 do
      local entry = entry_of({later[place], later[place + 1]})
      if entry.block ~= struck.block then break end
      old[#old + 1] = entry.member
      new[#new + 1] = later[place + 1]
      new[#new + 1] = format('%.0f:%.0f:%.0f', entry.serial, entry.through - count, entry.count)
    end
    call('ZREM', key, unpack(old))
    if #new > 0 then call('ZADD', key, unpack(new)) end
    for block = struck.block + 1, newest.block do call('ZADD', key, 'XX', 'INCR', digits(count), 'b' .. digits(block)) end
    bases = {[0] = 0}
    load()
    if newest then log.drop(cut) else emptied, log.amount = true, 0 end
  end

  -- The same where hardly anything expires, as of places: the only one, the oldest and the newest need no other entry changed.
  function log.release(moment, count)
    if not newest or clamped or spoilt or moment <= cut then return log.strike(moment, count) end
    local struck = moment == newest.moment and newest or moment == first.moment and first
    if not struck or count < struck.count then return log.strike(moment, count) end
    released = true
    if first.serial == newest.serial then
      emptied, newest, first, log.newest, log.amount = true, nil, nil, nil, 0
    elseif struck == newest then
      call('ZREM', key, struck.member)
      load()
      log.drop(cut)
    else
      call('ZREMRANGEBYSCORE', key, '0', digits(moment))
      first, log.amount = nil, log.amount - struck.count
    end
  end

  -- What it takes to deny again: the oldest entries as far as the n-th that was asked for, the newest moment, and how much there is.
  function log.told()
    if clamped then return '' end
    if not newest then return '-' end
    local last, from = asked or first, cut < 0 and '0' or '(' .. digits(cut)
    local found = call('ZRANGEBYSCORE', key, from, digits(last.moment), 'WITHSCORES', 'LIMIT', 0, TOLD + 1)
    if #found > 2 * TOLD then return '' end
    local parts, rest = {}, log.amount
    for place = 1, #found, 2 do
      local entry = entry_of({found[place], found[place + 1]})
      parts[#parts + 1] = digits(entry.moment) .. ',' .. digits(entry.count)
      rest = rest - entry.count
    end
    local text = '~' .. table.concat(parts, ',')
    if rest > 0 then text = text .. ';' .. digits(newest.moment) .. ',' .. digits(rest) end
    return text
  end

  load()
  return log
end
"""

LOG_AS_TEXT = """
-- For compare-and-swap a log travels whole, as text: `~` and (moment, count) of each entry, joined by commas.
local BLOCK = 256
local function digits(number) return string.format('%.0f', number) end

local function read_counter(key)
  local text = redis.pcall('GET', key)
  if type(text) ~= 'table' or not text.err then return text end
  local parts, found = {}, redis.call('ZRANGEBYSCORE', key, '0', '+inf', 'WITHSCORES')
  for place = 1, #found, 2 do
    parts[#parts + 1] = found[place + 1] .. ',' .. string.match(found[place], ':(%d+)$')
  end
  return '~' .. table.concat(parts, ',')
end

local function write_log(key, text, life)
  redis.call('DEL', key)
  local serial, through, total = 0, 0, 0
  for moment, count in string.gmatch(text, '(%d+),(%d+)') do
    if serial > 0 and math.fmod(serial, BLOCK) == 0 then
      redis.call('ZADD', key, digits(-total - 1), 'b' .. digits(serial / BLOCK))
      through = 0
    end
    through, total = through + tonumber(count), total + tonumber(count)
    redis.call('ZADD', key, moment, digits(serial) .. ':' .. digits(through) .. ':' .. count)
    serial = serial + 1
  end
  redis.call('PEXPIRE', key, life)
end
"""


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
