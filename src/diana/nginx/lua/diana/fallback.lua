-- The store is lost: each rule does its `when_down`. `local` counts here, with this nginx's share of the limit.
local settling = require 'diana.settling'
local zone = require 'diana.zone'

local RETRY_US = 1000000

-- `unknown`: the store may have counted them, though no reply came.
return function(charges, outcomes, unknown)
  local here, counts, closed = {}, {}, false
  for _, charge in ipairs(charges) do
    local when_down = charge.rule.when_down
    if when_down == 'local' then
      here[#here + 1] = charge
      counts[#counts + 1] = {counter = 'lost ' .. charge.counter, limit = charge.meter.share, cost = charge.rule.cost}
    elseif when_down == 'open' then
      outcomes[charge] = {allowed = true, remaining = charge.meter.limit, retry = 0, reset = 0, delay = 0, degraded = true}
    else
      closed = true
      outcomes[charge] = {allowed = false, remaining = 0, retry = RETRY_US, reset = RETRY_US, delay = 0, degraded = true}
    end
  end
  if #here == 0 then return end
  local found = closed and zone.peek(counts) or zone.decide(counts)
  local admitted = not closed and not unknown
  for place, charge in ipairs(here) do
    outcomes[charge] = found[place]
    outcomes[charge].degraded = true
    admitted = admitted and found[place].allowed
  end
  if admitted then settling.note(here) end
end
