-- All rules, by request, in the order of `diana/engine/evaluator.py`: local ones first, so that what they deny costs no round trip; then the store;
-- if that denies, what was charged here comes back; those in the shadow count what passed.
local charging = require 'diana.charging'
local dropping = require 'diana.dropping'
local fallback = require 'diana.fallback'
local store = require 'diana.store'
local zone = require 'diana.zone'

local NEVER = -1

local decide = {}

local function refused() return {allowed = false, remaining = 0, retry = NEVER, reset = 0, delay = 0} end

local function counts_of(charges, cost)
  local counts = {}
  for place, charge in ipairs(charges) do
    counts[place] = {counter = charge.counter, limit = charge.meter, cost = cost or charge.rule.cost}
  end
  return counts
end

local function outcomes_of(charges, outcomes)
  local some = {}
  for place, charge in ipairs(charges) do some[place] = outcomes[charge] end
  return some
end

local function all_pass(charges, outcomes)
  for _, charge in ipairs(charges) do
    if not outcomes[charge].allowed then return false end
  end
  return true
end

local function put(charges, found, outcomes)
  for place, charge in ipairs(charges) do
    outcomes[charge] = found[place]
    outcomes[charge].at = found.now
  end
end

-- No rule is charged; a local one before the one that refuses shows what it has.
local function refuse(charges, refusing)
  local outcomes, asked = {}, {}
  for _, charge in ipairs(charges) do
    if charge.rule.mode == 'enforce' and charge.rule.scope == 'local' then
      local found = zone.peek(counts_of({charge}))
      if found[1].allowed then found = zone.peek(counts_of({charge}, 0)) end
      outcomes[charge] = found[1]
      asked[#asked + 1] = charge
    end
  end
  outcomes[refusing] = refused()
  asked[#asked + 1] = refusing
  return asked, outcomes
end

local function split(charges)
  local here, there, shadows = {}, {}, {}
  for _, charge in ipairs(charges) do
    local list = charge.rule.mode ~= 'enforce' and shadows or charge.rule.scope == 'local' and here or there
    list[#list + 1] = charge
  end
  return here, there, shadows
end

local function count_shadow(charge, outcomes)
  if charge.instead == 'deny' then
    outcomes[charge] = refused()
  elseif charge.rule.scope == 'local' then
    put({charge}, zone.decide(counts_of({charge})), outcomes)
  else
    for one, outcome in pairs(store.decide({charge}, fallback)) do outcomes[one] = outcome end
  end
end

-- The charges that were asked, in order, and what each came to.
local function asked_and_outcomes(charges, refusing)
  if refusing then return refuse(charges, refusing) end
  local dropped, outcome = dropping.first(charges)
  if dropped then return {dropped}, {[dropped] = outcome} end
  local here, there, shadows = split(charges)
  local outcomes = {}
  if #here > 0 then put(here, zone.decide(counts_of(here)), outcomes) end
  local allowed = all_pass(here, outcomes)
  if allowed and #there > 0 then
    local found = store.decide(there, fallback)
    for charge, one in pairs(found) do
      outcomes[charge] = one
      allowed = allowed and one.allowed
    end
    if not allowed and #here > 0 then
      zone.give_back(counts_of(here), outcomes_of(here, outcomes))
      put(here, zone.peek(counts_of(here, 0)), outcomes)
    end
  end
  if allowed then
    for _, charge in ipairs(shadows) do count_shadow(charge, outcomes) end
  end
  local asked = {}
  for _, charge in ipairs(charges) do
    if outcomes[charge] then asked[#asked + 1] = charge end
  end
  return asked, outcomes
end

-- The client has left before its delay was over.
function decide.give_back(verdict)
  local here, there = {}, {}
  for _, charge in ipairs(verdict.asked) do
    local outcome = verdict.outcomes[charge]
    if charge.rule.scope == 'local' then
      here[#here + 1] = charge
    elseif not outcome.degraded then
      there[#there + 1] = charge
    end
  end
  if #here > 0 then zone.give_back(counts_of(here), outcomes_of(here, verdict.outcomes)) end
  if #there > 0 then store.give_back(there, verdict.outcomes) end
end

-- What all rules together say.
function decide.verdict(policy, request)
  local asked, outcomes = asked_and_outcomes(charging.charges(policy, request))
  local verdict = {allowed = true, delay = 0, asked = {}, outcomes = outcomes}
  for _, charge in ipairs(asked) do
    if charge.rule.mode == 'enforce' then
      local outcome = outcomes[charge]
      verdict.asked[#verdict.asked + 1] = charge
      if not outcome.allowed then
        verdict.allowed = false
        verdict.denied_by = verdict.denied_by or charge.rule
        verdict.listed = charge.listed
      end
      verdict.delay = math.max(verdict.delay, outcome.delay)
    end
  end
  return verdict
end

return decide
