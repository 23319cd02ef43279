-- Asking the store, with the script that all nodes use, on the same counters.
local breaker = require 'diana.breaker'
local clock = require 'diana.clock'
local kernels = require 'diana.kernels'
local redis = require 'diana.redis'
local refund = require 'diana.refund'
local topology = require 'diana.topology'

local TOO_LATE, LENIENCE_US, SWAP_TRIES, GRACE_MS = -1, 1000000, 5, 1000

local store = {}
local settings
local offsets = {}
local tag = 0

function store.open(found)
  settings = found
  topology.open(found)
end

-- What other nodes call the script that decides.
function store.use_sha(sha) settings.sha = sha end

local function is_error(reply, word) return type(reply) == 'table' and reply.err and string.find(reply.err, word, 1, true) == 1 end

-- A script by its hash, and if the server does not know it, by its text; to where the slot has moved, if it has.
local function call(slot, sha, text, rest, deadline_us)
  local server, asking = topology.server_of(slot), false
  for _ = 1, 5 do
    if breaker.is_open(server) then return nil, 'the breaker is open', false end
    local sent = clock.monotonic_us()
    local function ask(words)
      local commands = asking and {{'ASKING'}, words} or {words}
      local replies, failure, unknown = redis.ask(server, settings.login, commands, deadline_us)
      if not replies then
        breaker.failed(server, failure, sent)
        return nil, failure, unknown
      end
      breaker.heard(server)
      return replies[#replies]
    end
    local words = {'EVALSHA', sha, unpack(rest)}
    local reply, failure, unknown = ask(words)
    if reply and is_error(reply, 'NOSCRIPT') then
      words[1], words[2] = 'EVAL', text
      reply, failure, unknown = ask(words)
    end
    if reply == nil then return nil, failure, unknown end
    asking = false
    if is_error(reply, 'MOVED') or is_error(reply, 'ASK') then
      local moved = is_error(reply, 'MOVED')
      local host, port = string.match(reply.err, '(%S*):(%d+)$')
      if not host then return nil, reply.err, false end
      if host == '' then host = string.match(server, '^(.*):%d+$') end
      server, asking = host .. ':' .. port, not moved
      if moved then topology.move(slot, server) end
    elseif type(reply) == 'table' and reply.err then
      -- It refuses, or is loading its data, or is no master any more.
      breaker.failed(server, reply.err, nil)
      return nil, reply.err, false
    else
      return reply, server, sent
    end
  end
  return nil, 'the slot moves to and fro', false
end

-- What the script says to one request; nil and whether it may have been charged.
local function acquire(word, slot, charges, deadline_us)
  for _, lenience_us in ipairs {0, LENIENCE_US} do
    tag = tag + 1
    local name = '#' .. tag
    local server = topology.server_of(slot)
    local latest = offsets[server] and string.format('%.0f', deadline_us + lenience_us + offsets[server]) or ''
    local rest = {tostring(#charges)}
    for place, charge in ipairs(charges) do rest[place + 1] = charge.counter end
    rest[#rest + 1], rest[#rest + 2], rest[#rest + 3] = '', latest, name
    rest[#rest + 1], rest[#rest + 2] = word, tostring(#charges)
    for _, charge in ipairs(charges) do
      rest[#rest + 1], rest[#rest + 2] = charge.meter.wire, string.format('%.0f', charge.cost or charge.rule.cost)
    end
    local reply, said_by, third = call(slot, settings.sha, settings.acquire, rest, deadline_us)
    if reply == nil then return nil, third end
    if type(reply) ~= 'table' or reply[2] ~= name or type(reply[1]) ~= 'number' then
      breaker.failed(said_by, 'unexpected reply', nil)
      return nil, true
    end
    -- How far the server's clock is ahead of ours: at most a round trip too much.
    offsets[said_by] = reply[1] - third
    if reply[3] ~= TOO_LATE then
      if type(reply[3]) ~= 'table' then return nil, false end
      return reply[3], reply[1]
    end
  end
  return nil, false
end

local function outcomes_of(said, charges, outcomes, at)
  for place, charge in ipairs(charges) do
    local first = 5 * place - 3
    outcomes[charge] = {
      allowed = said[first] == 1, remaining = said[first + 1], retry = said[first + 2], reset = said[first + 3],
      delay = said[first + 4], at = at,
    }
  end
end

local function text_of(state)
  local digits = {}
  for place, number in ipairs(state) do digits[place] = string.format('%.0f', number) end
  return table.concat(digits, ',')
end

-- Another slot has denied: this charge comes back, by comparing and swapping.
local function give_back_one(charge, outcome)
  local slot, deadline_us = topology.slot_of(charge.counter), clock.monotonic_us() + LENIENCE_US
  local meter, cost = charge.meter, charge.rule.cost
  local at = refund.moment_of(meter, outcome)
  if not refund[meter.code] then
    local argv = {'1', charge.counter, '', '', 'refund', '1', meter.wire, string.format('%.0f@%.0f', cost, at)}
    call(slot, settings.sha, settings.acquire, argv, deadline_us)
    return
  end
  for _ = 1, SWAP_TRIES do
    local read = call(slot, settings.read_sha, settings.read, {'1', charge.counter}, deadline_us)
    local before = type(read) == 'table' and read[2]
    if not before then return end
    local now = tonumber(read[1][1]) * 1000000 + tonumber(read[1][2])
    local state = {}
    for number in string.gmatch(before, '%d+') do state[#state + 1] = tonumber(number) end
    local after = refund[meter.code](state, meter.numbers, cost, at, now)
    local _, _, _, _, reset = kernels[meter.code](after, meter.numbers, 0, now)
    local life = string.format('%.0f', math.ceil(reset / 1000) + GRACE_MS)
    local argv = {'1', charge.counter, '', before, text_of(after), life}
    local swapped = call(slot, settings.swap_sha, settings.swap, argv, deadline_us)
    if type(swapped) ~= 'table' or swapped[1] ~= 0 then return end
  end
end

function store.give_back(charges, outcomes)
  ngx.timer.at(0, function(premature)
    if premature then return end
    for _, charge in ipairs(charges) do give_back_one(charge, outcomes[charge]) end
  end)
end

-- All or nothing. `lost(charges, outcomes, unknown)` decides for those of which the store says nothing in time.
function store.decide(charges, lost)
  local deadline_us = clock.monotonic_us() + settings.budget_us
  local slots, groups = {}, {}
  for _, charge in ipairs(charges) do
    local slot = topology.slot_of(charge.counter)
    if not slots[slot] then
      slots[slot] = {slot = slot, charges = {}}
      groups[#groups + 1] = slots[slot]
    end
    table.insert(slots[slot].charges, charge)
  end
  local outcomes, charged, denied = {}, {}, false
  for _, group in ipairs(groups) do
    local said, at = acquire(#groups > 1 and 'hold' or 'take', group.slot, group.charges, deadline_us)
    if said then
      outcomes_of(said, group.charges, outcomes, at)
      if said[1] == 1 then
        for _, charge in ipairs(group.charges) do charged[#charged + 1] = charge end
      end
    else
      lost(group.charges, outcomes, at)
    end
    for _, charge in ipairs(group.charges) do denied = denied or not outcomes[charge].allowed end
    if denied then break end
  end
  if denied and #charged > 0 then
    store.give_back(charged, outcomes)
    for _, charge in ipairs(charged) do
      local outcome = outcomes[charge]
      outcome.remaining, outcome.delay = outcome.remaining + charge.rule.cost, 0
    end
  end
  return outcomes
end

-- As much of this as still fits, in the background.
function store.fill(counter, wire, amount)
  local charge = {counter = counter, meter = {wire = wire}, cost = amount}
  acquire('fill', topology.slot_of(counter), {charge}, clock.monotonic_us() + LENIENCE_US)
end

-- One command in the background; the reply, or nil.
function store.background(key, commands)
  local server = topology.server_of(topology.slot_of(key))
  local replies = redis.ask(server, settings.login, commands, clock.monotonic_us() + LENIENCE_US)
  return replies
end

-- Does it answer, and run scripts? Then requests ask it again.
function store.probe(server)
  local deadline_us = clock.monotonic_us() + LENIENCE_US
  local replies = redis.ask(server, settings.login, {{'EVAL', settings.acquire, '0', '', ''}}, deadline_us)
  return replies and type(replies[1]) == 'table' and not replies[1].err
end

return store
