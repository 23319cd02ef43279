-- Whose address? `diana/core/client_address.py`: the socket's peer, or what a trusted proxy says it was.
local bit = require 'bit'
local remembering = require 'diana.remembering'
local text = require 'diana.text'
local byte, char, find, sub, format = string.byte, string.char, string.find, string.sub, string.format

local LONGEST, MOST_HOPS = 64, 64
local MAPPED = string.rep('\0', 10) .. '\255\255'
local NAT64 = '\0\100\255\155' .. string.rep('\0', 8)

local address = {}

local function ipv4(spelled)
  local octets = {string.match(spelled, '^(%d%d?%d?)%.(%d%d?%d?)%.(%d%d?%d?)%.(%d%d?%d?)$')}
  if #octets ~= 4 then return nil end
  for place, octet in ipairs(octets) do
    if (#octet > 1 and sub(octet, 1, 1) == '0') or tonumber(octet) > 255 then return nil end
    octets[place] = tonumber(octet)
  end
  return char(unpack(octets))
end

local function groups_of(spelled, groups)
  if spelled == '' then return true end
  for _, group in ipairs(text.split(spelled, ':')) do
    if not find(group, '^%x%x?%x?%x?$') then return false end
    local number = tonumber(group, 16)
    groups[#groups + 1] = char(math.floor(number / 256), number % 256)
  end
  return true
end

local function ipv6(spelled)
  local head, last = string.match(spelled, '^(.*:)([^:]*%.[^:]*)$')
  if last then
    local four = ipv4(last)
    if not four then return nil end
    spelled = head .. format('%x:%x', byte(four, 1) * 256 + byte(four, 2), byte(four, 3) * 256 + byte(four, 4))
  end
  local before, behind = {}, {}
  local at = find(spelled, '::', 1, true)
  if at then
    if not groups_of(sub(spelled, 1, at - 1), before) or not groups_of(sub(spelled, at + 2), behind) then return nil end
    local missing = 8 - #before - #behind
    if missing < 1 then return nil end
    return table.concat(before) .. string.rep('\0\0', missing) .. table.concat(behind)
  end
  if spelled == '' or not groups_of(spelled, before) or #before ~= 8 then return nil end
  return table.concat(before)
end

-- Four or sixteen bytes; nil if it is no address. A port or a zone is dropped, IPv4 in IPv6 clothes is undressed.
function address.bytes(spelled)
  spelled = text.strip(spelled)
  if sub(spelled, 1, 1) == '[' then
    spelled = string.match(spelled, '^%[([^%]]*)')
  else
    local _, colons = string.gsub(spelled, ':', '')
    if colons == 1 then spelled = string.match(spelled, '^[^:]*') end
  end
  spelled = string.match(spelled, '^[^%%]*')
  local bytes = ipv4(spelled) or ipv6(spelled)
  if bytes and #bytes == 16 and sub(bytes, 1, 12) == MAPPED then return sub(bytes, 13) end
  return bytes
end

local function spelled_ipv4(bytes) return format('%d.%d.%d.%d', byte(bytes, 1, 4)) end

-- The /64 of an address: its first four groups, the longest row of zeros left out.
local function spelled_network(bytes)
  local groups = {}
  for place = 1, 4 do groups[place] = byte(bytes, 2 * place - 1) * 256 + byte(bytes, 2 * place) end
  for place = 5, 8 do groups[place] = 0 end
  local best_from, best, from = nil, 1, nil
  for place = 1, 9 do
    if groups[place] == 0 then
      from = from or place
    elseif from then
      if place - from > best then best_from, best = from, place - from end
      from = nil
    end
  end
  local parts = {}
  local place = 1
  while place <= 8 do
    if place == best_from then
      parts[#parts + 1] = place == 1 and '::' or ':'
      place = place + best
    else
      parts[#parts + 1] = format('%x', groups[place]) .. (place < 8 and ':' or '')
      place = place + 1
    end
  end
  return table.concat(parts) .. '/64'
end

-- `203.0.113.9`, or `2001:db8:0:1::/64`; nil if it is no address.
address.counted = remembering(function(spelled)
  local bytes = address.bytes(spelled)
  if not bytes then return nil end
  if #bytes == 4 then return spelled_ipv4(bytes) end
  if sub(bytes, 1, 12) == NAT64 then return spelled_ipv4(sub(bytes, 13)) end
  if sub(bytes, 1, 2) == '\32\2' then return spelled_ipv4(sub(bytes, 3, 6)) end
  return spelled_network(bytes)
end)

local function masked(bytes, bits)
  local whole = math.floor(bits / 8)
  local rest = bits - whole * 8
  if rest == 0 then return sub(bytes, 1, whole) end
  return sub(bytes, 1, whole) .. char(bit.band(byte(bytes, whole + 1), 256 - 2 ^ (8 - rest)))
end

-- Looked up by their lengths. `list` as Python writes networks.
function address.networks(list)
  local lengths = {}
  for _, spelled in ipairs(list) do
    local base, bits = string.match(spelled, '^(.*)/(%d+)$')
    local bytes = ipv4(base) or ipv6(base)
    bits = tonumber(bits)
    local name = #bytes .. '/' .. bits
    lengths[name] = lengths[name] or {size = #bytes, bits = bits, known = {}}
    lengths[name].known[masked(bytes, bits)] = true
  end
  return lengths
end

function address.is_in(lengths, spelled)
  local bytes = address.bytes(spelled)
  if not bytes then return false end
  for _, one in pairs(lengths) do
    if one.size == #bytes and one.known[masked(bytes, one.bits)] then return true end
  end
  return false
end

local function hops_of(lines)
  local hops = {}
  for place = #lines, 1, -1 do
    if #hops >= MOST_HOPS then break end
    local parts = text.split(lines[place], ',')
    for part = #parts, math.max(1, #parts - MOST_HOPS + 1), -1 do hops[#hops + 1] = text.cut(text.strip(parts[part]), LONGEST) end
  end
  return hops
end

-- The client as it is written: read from the right, the first hop that is not trusted.
function address.nearest(peer, proxies, lines)
  if not peer then return nil end
  peer = text.cut(peer, LONGEST)
  if not address.is_in(proxies, peer) then return peer end
  local nearest = peer
  for place, hop in ipairs(hops_of(lines)) do
    if place > MOST_HOPS or not address.bytes(hop) then break end
    nearest = hop
    if not address.is_in(proxies, hop) then break end
  end
  return nearest
end

function address.client(request, proxies)
  if not request.peer then return nil end
  if not next(proxies) then return address.counted(text.cut(request.peer, LONGEST)) end
  local nearest = address.nearest(request.peer, proxies, request:lines('x-forwarded-for'))
  return nearest and address.counted(nearest)
end

return address
