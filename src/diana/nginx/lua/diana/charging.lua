-- Who is asking, for each of the rules? From rules and a request to charges: `diana/engine/charge_builder.py`.
local actors = require 'diana.actors'
local address = require 'diana.address'
local clock = require 'diana.clock'
local keys = require 'diana.keys'
local rules = require 'diana.rules'

local NONE = {}

local charging = {}

local function is_listed(roster, request, policy)
  for _, entry in ipairs(roster) do
    if entry.networks then
      local nearest = address.nearest(request.peer, policy.proxies, request:lines('x-forwarded-for'))
      if nearest and address.is_in(entry.networks, nearest) then return true end
    else
      local key, contradicts = actors.key(entry.actor, request, policy.proxies)
      if contradicts then return nil end
      if key and entry.keys[key] then return true end
    end
  end
  return false
end

-- In how many readings it is on the list, and how many there are; nil if it cannot be told.
local function readings_on(roster, request, readings, policy)
  if not readings or not roster.reads_path then
    local listed = is_listed(roster, request, policy)
    if listed == nil then return nil end
    return listed and 1 or 0, 1
  end
  local count = 0
  for _, reading in ipairs(readings) do
    request.reading = reading
    local listed = is_listed(roster, request, policy)
    request.reading = nil
    if listed == nil then return nil end
    if listed then count = count + 1 end
  end
  return count, #readings
end

local function is_left_alone(rule, request, readings, policy)
  for _, roster in ipairs(rule.allow or {}) do
    local count, all = readings_on(roster, request, readings, policy)
    if count and all > 0 and count == all then return true end
  end
  for _, roster in ipairs(rule.only or {}) do
    local count, all = readings_on(roster, request, readings, policy)
    if count and all > 0 and count == 0 then return true end
  end
  return false
end

-- In some reading; and one that contradicts itself, or may be read in too many ways, is denied too.
local function is_denied(rule, request, readings, policy)
  for _, roster in ipairs(rule.deny or NONE) do
    local count, all = readings_on(roster, request, readings, policy)
    if not count or count > 0 or all == 0 then return true end
  end
  return false
end

local function key_without_identity(missing, request, policy)
  if missing == 'ip' then return '?' .. (address.client(request, policy.proxies) or '') end
  if missing == 'together' then return '?' end
  return nil, missing
end

-- The key to count by; or nil and what happens instead: `skip` or `deny`.
local function key_of(rule, request, policy)
  local key, contradicts = actors.key_of_all(rule.actors, request, policy.proxies)
  if key then return key end
  local missing = rule.missing
  -- A client could choose to contradict itself, so that is never a way out.
  if contradicts and missing == 'skip' then missing = 'together' end
  return key_without_identity(missing, request, policy)
end

local function meter_of(rule, key, request, policy)
  -- The store's win over the file's.
  for _, overrides in ipairs {rule.stored or NONE, rule.overrides or NONE} do
    local written = overrides[key]
    if written and (not written.until_us or clock.now_us() < written.until_us) then return written.meter end
  end
  if rule.tiers then
    local tier = actors.value(policy.tier, request, policy.proxies)
    return tier and rule.tiers[tier] or rule.meter
  end
  return rule.meter
end

local function charge_of(rule, key, instead, request, policy)
  local meter = key and meter_of(rule, key, request, policy) or rule.meter
  if meter.rpu == 0 and instead ~= 'skip' then instead = 'deny' end
  return {rule = rule, key = key, instead = instead, meter = meter, counter = key and keys.counter(rule.id, key)}
end

-- The charges; and the one that its rule refuses whatever was counted, if one does (it has no identity, or its limit is 0): then those
-- before it. One that a list of the rule denies is refused alone.
function charging.charges(policy, request)
  local match = rules.match(policy, request)
  local readings = match.readings
  for _, rule in ipairs(match.rules) do
    if rule.deny and rule.mode == 'enforce' and is_denied(rule, request, readings, policy) then
      return {}, {rule = rule, meter = rule.meter, listed = true}
    end
  end
  local found = {}
  for _, rule in ipairs(match.rules) do
    if rule.deny and rule.mode ~= 'enforce' and is_denied(rule, request, readings, policy) then
      found[#found + 1] = {rule = rule, meter = rule.meter, instead = 'deny'}
    elseif not is_left_alone(rule, request, readings, policy) then
      if not readings or not rule.reads_path then
        local key, instead = key_of(rule, request, policy)
        found[#found + 1] = charge_of(rule, key, instead, request, policy)
      elseif #readings == 0 then
        local missing = rule.missing == 'skip' and 'together' or rule.missing
        local key, instead = key_without_identity(missing, request, policy)
        found[#found + 1] = charge_of(rule, key, instead, request, policy)
      else
        -- Once for every different value that the readings give.
        local different, order = {}, {}
        for _, reading in ipairs(readings) do
          if rules.covers(rule, reading) then
            request.reading = reading
            local key, instead = key_of(rule, request, policy)
            request.reading = nil
            local name = key or (instead == 'deny' and '!' or '-')
            if not different[name] then
              different[name] = {key, instead}
              order[#order + 1] = name
            end
          end
        end
        table.sort(order)
        for _, name in ipairs(order) do
          found[#found + 1] = charge_of(rule, different[name][1], different[name][2], request, policy)
        end
      end
    end
  end
  local kept = {}
  for _, charge in ipairs(found) do
    if charge.instead == 'deny' and charge.rule.mode == 'enforce' then return kept, charge end
    if charge.instead ~= 'skip' then kept[#kept + 1] = charge end
  end
  return kept
end

return charging
