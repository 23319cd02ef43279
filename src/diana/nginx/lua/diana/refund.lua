-- What was charged, given back as far as it still counts: `refund` of `diana/algorithms`, for states that are a few numbers.
local kernels = require 'diana.kernels'
local fmod = math.fmod

local SPANS, SECOND = 4, 1000000

local function whole(number, divisor) return (number - fmod(number, divisor)) / divisor end

-- In ticks: rounded up; and what leaks in any case, though a coarse tick hides when in it something was poured.
local function ticks_up(elapsed, tick)
  if elapsed <= 0 then return 0 end
  return whole(elapsed + tick - 1, tick)
end

local function leaks_surely(elapsed, leak, drain, tick)
  if elapsed <= 0 then return 0 end
  return math.min(math.max(0, whole(elapsed, tick) - (tick > 1 and 1 or 0)), drain) * leak
end

-- The level that what was poured from a span on can have left, at the most: as if all of each came at its end.
local function left_since(ledger, span, last, now, leak, drain, tick, ceiling)
  local left, over = 0, ledger[span]
  for place = span, #ledger, 2 do
    local next_over = math.min(ledger[place + 2] or last, last)
    left = math.min(ceiling, math.max(0, left - leaks_surely(next_over - over, leak, drain, tick)) + ledger[place + 1])
    over = next_over
  end
  return math.max(0, left - leaks_surely(now - over, leak, drain, tick))
end

-- The level of the same history without this charge, or a little more: see the ledger in `diana/algorithms/bucket.py`.
local function bucket(state, params, cost, at, now)
  local capacity, _, per, leak, drain, tick, limit, ceiling = unpack(params)
  local found = kernels.TB(state, params, 0, now)
  local level, as_of = found[1], found[2]
  if level == 0 then return {0, now, per} end
  if now - at >= drain * tick then return state end
  local stamp = math.min(state[2], as_of)
  local last = stamp > now and stamp or math.min(now, stamp + tick - 1)
  local hidden = tick > 1 and now > at and leak or 0
  cost = math.min(cost, limit) * per
  local ledger = {}
  if state[3] == per and state[2] - now <= SECOND then
    for place = 4, #state do ledger[place - 3] = state[place] end
  end
  if at == now and now < stamp then at = math.max(stamp, ledger[#ledger - 1] or stamp) end  -- charged just now, to the last span
  if #ledger == 0 then ledger = {at, level + ticks_up(now - at, tick) * leak} end
  if at < ledger[1] then
    ledger[2] = ledger[2] + ticks_up(ledger[1] - at, tick) * leak
    ledger[1] = at
  end
  local span = #ledger - 1
  while ledger[span] > at do span = span - 2 end
  ledger[span + 1] = math.max(0, ledger[span + 1] - cost)
  local bound = math.min(level - cost + ticks_up(last - at, tick) * leak,
    left_since(ledger, span, last, now, leak, drain, tick, ceiling or capacity))
  local rest = math.min(level, math.max(bound + hidden, level - cost, 0))
  if rest == 0 then return {0, now, per} end
  if now - ledger[#ledger - 1] >= ticks_up(drain, SPANS) * tick then
    ledger[#ledger + 1] = math.max(now, stamp) + 1
    ledger[#ledger + 1] = 0
  end
  while #ledger > 2 and now - ledger[3] >= drain * tick do
    local poured = rest + ticks_up(now - ledger[3], tick) * leak
    for place = 6, #ledger, 2 do poured = poured - ledger[place] end
    table.remove(ledger, 1)
    table.remove(ledger, 1)
    ledger[2] = math.max(ledger[2], poured)
  end
  local after = {rest + whole(as_of - stamp, tick) * leak, stamp, per}
  for place = 1, #ledger do after[place + 3] = ledger[place] end
  return after
end

local function window(state, params, cost, at, now)
  local start, count = state[1], state[2]
  if start > at or math.max(at, now) - start >= params[2] then return state end
  return {start, math.max(0, count - cost)}
end

local function sliding_window(state, params, cost, at, now)
  local slice, slices = params[2], params[3]
  local after = kernels.SW(state, params, 0, now)
  local last, charged = after[1], whole(at, slice)
  if last - slices <= charged and charged <= last then
    local place = fmod(charged, slices + 1) + 3
    local back = math.min(cost, after[place])
    after[place], after[2] = after[place] - back, after[2] - back
  end
  return after
end

local refund = {TB = bucket, LB = bucket, W = window, SW = sliding_window}

-- For how long what is charged now counts.
local SPANS_OF = {
  W = function(numbers) return numbers[2] end,
  SW = function(numbers) return (numbers[3] + 1) * numbers[2] end,
  SL = function(numbers) return numbers[2] end,
}

-- The moment under which a charge is refunded: the window, slice or entry that counts it may be ahead.
function refund.moment_of(limit, outcome)
  local span_of = SPANS_OF[limit.code]
  return span_of and math.max(outcome.at, outcome.at + outcome.reset - span_of(limit.numbers)) or outcome.at
end

return refund
