-- Which server has a key: the one there is, or in a cluster the master of its slot.
local bit = require 'bit'
local redis = require 'diana.redis'

local SLOTS = 16384

local topology = {}
local settings
local servers_of_slots = {}

-- CRC-16 of XMODEM, as the cluster has it.
local CRC = {}
for number = 0, 255 do
  local crc = bit.lshift(number, 8)
  for _ = 1, 8 do
    crc = bit.band(crc, 0x8000) ~= 0 and bit.bxor(bit.lshift(crc, 1), 0x1021) or bit.lshift(crc, 1)
  end
  CRC[number] = bit.band(crc, 0xFFFF)
end

-- No key of ours has a brace, so all of it counts.
function topology.slot_of(key)
  if not settings.cluster then return 0 end
  local crc = 0
  for place = 1, #key do
    crc = bit.bxor(bit.band(bit.lshift(crc, 8), 0xFFFF), CRC[bit.bxor(bit.rshift(crc, 8), string.byte(key, place))])
  end
  return crc % SLOTS
end

function topology.open(store) settings = store end

function topology.server_of(slot) return servers_of_slots[slot] or settings.servers[1] end

-- A server said who has the slot now.
function topology.move(slot, server) servers_of_slots[slot] = server end

-- The whole map, from the first server that tells; never in a request's way.
function topology.refresh(deadline_us)
  if not settings.cluster then return end
  local asked = {}
  for _, server in ipairs(settings.servers) do asked[server] = true end
  for _, server in pairs(servers_of_slots) do asked[server] = true end
  for server in pairs(asked) do
    local replies = redis.ask(server, settings.login, {{'CLUSTER', 'SLOTS'}}, deadline_us())
    local ranges = replies and replies[1]
    if type(ranges) == 'table' and not ranges.err and #ranges > 0 then
      local found = {}
      for _, range in ipairs(ranges) do
        local host = range[3][1]
        if not host or host == '' then host = string.match(server, '^(.*):%d+$') end
        for slot = range[1], range[2] do found[slot] = host .. ':' .. range[3][2] end
      end
      servers_of_slots = found
      return
    end
  end
end

-- All that are in use.
function topology.servers()
  local list, known = {}, {}
  local function add(server)
    if not known[server] then
      known[server] = true
      list[#list + 1] = server
    end
  end
  if next(servers_of_slots) then
    for _, server in pairs(servers_of_slots) do add(server) end
  else
    add(settings.servers[1])
  end
  return list
end

return topology
