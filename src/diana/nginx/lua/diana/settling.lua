-- What was admitted here while the store was lost is charged to it once when it is back: at most what the counter here still holds, because
-- what has leaked out or left its window would be forgotten there too. It is forgotten here before it is sent, so never charged twice.
local breaker = require 'diana.breaker'
local store = require 'diana.store'
local topology = require 'diana.topology'
local zone = require 'diana.zone'

local AT_ONCE, LOCK_SECONDS, KNOWN_SECONDS = 1024, 30, 86400
local LIMITS = {TB = 7, LB = 7, W = 1, SW = 1}

local settling = {}
local dict

function settling.open(name) dict = ngx.shared[name] end

-- It is certain that the store has not counted these.
function settling.note(charges)
  for _, charge in ipairs(charges) do
    local share, digits = charge.meter.share, {}
    for place, number in ipairs(share.numbers) do digits[place] = string.format('%.0f', number) end
    local terms = charge.meter.wire .. ' ' .. share.code .. ' ' .. table.concat(digits, ',')
    dict:set('terms ' .. charge.counter, terms, KNOWN_SECONDS)
    dict:incr('debt ' .. charge.counter, charge.rule.cost, 0, KNOWN_SECONDS)
  end
  if #charges > 0 then dict:set('some', true) end
end

local function settle_one(counter)
  local amount = dict:get('debt ' .. counter) or 0
  local wire, code, numbers = string.match(dict:get('terms ' .. counter) or '', '^(%S+) (%S+) (%S+)$')
  if amount <= 0 or not wire then return end
  dict:incr('debt ' .. counter, -amount)
  local share = {code = code, numbers = {}}
  for number in string.gmatch(numbers, '%d+') do table.insert(share.numbers, tonumber(number)) end
  local left = zone.peek({{counter = 'lost ' .. counter, limit = share, cost = 0}})[1].remaining
  local owed = math.min(amount, share.numbers[LIMITS[code]] - left)
  if owed > 0 then store.fill(counter, wire, owed) end
end

-- One worker at a time; those of servers that are still lost stay.
function settling.settle()
  if not dict:get('some') or not dict:add('settling', true, LOCK_SECONDS) then return end
  dict:delete('some')
  for _, name in ipairs(dict:get_keys(2 * AT_ONCE)) do
    local counter = string.match(name, '^debt (.*)$')
    if counter then
      if breaker.is_open(topology.server_of(topology.slot_of(counter))) then
        dict:set('some', true)
      else
        local fine, failure = pcall(settle_one, counter)
        if not fine then ngx.log(ngx.ERR, 'diana: settling failed: ', failure) end
      end
    end
  end
  dict:delete('settling')
end

return settling
