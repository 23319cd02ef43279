-- What was charged, given back as far as it still counts: `refund` of `diana/algorithms`, for states that are a few numbers.
local kernels = require 'diana.kernels'
local fmod = math.fmod

local function whole(number, divisor) return (number - fmod(number, divisor)) / divisor end

local function bucket(state, params, cost, at, now)
  local _, _, per, leak, drain, tick, limit = unpack(params)
  local level, stamp = unpack((kernels.TB(state, params, 0, now)))
  local ticks = math.min(whole(math.max(0, now - at), tick), drain)
  local back = math.min(cost, limit) * per - ticks * leak
  return {level - math.min(level, math.max(0, back)), stamp, per}
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

return {TB = bucket, LB = bucket, W = window, SW = sliding_window}
