-- `drop: random`: when more than twice the limit ask for a key, chance decides who asks, before the store is asked: `diana/engine/random_early_drop.py`.
-- This nginx knows its own arrivals, of all its workers together.
local clock = require 'diana.clock'

local RETRY_US, ASKED, FORGET_SECONDS = 1000000, 2, 3

local dropping = {}
local dict

function dropping.open(name) dict = ngx.shared[name] end

local function is_dropped(charge)
  local second = math.floor(clock.now_us() / 1000000)
  local now = dict:incr('asked ' .. second .. ' ' .. charge.counter, 1, 0, FORGET_SECONDS) or 1
  local before = dict:get('asked ' .. (second - 1) .. ' ' .. charge.counter) or 0
  local per_second = math.max(now, before)
  local enough = ASKED * charge.meter.rpu * 1000000 / charge.meter.unit_us
  return per_second > enough and math.random() >= enough / per_second
end

-- The first charge that chance denies, with its outcome; every such rule counts the arrival.
function dropping.first(charges)
  local found
  for _, charge in ipairs(charges) do
    if charge.rule.drop and charge.rule.mode == 'enforce' and charge.key and is_dropped(charge) then found = found or charge end
  end
  return found, {allowed = false, remaining = 0, retry = RETRY_US, reset = RETRY_US, delay = 0}
end

return dropping
