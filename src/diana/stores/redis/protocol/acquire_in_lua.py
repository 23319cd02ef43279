"""The script that decides, `acquire`: many requests at once, each all or nothing by itself, and an error of one hurts no other.

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
"""

from __future__ import annotations

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
