-- What rules may look at, as `diana/core/request.py` reads it. A request that says two things at once contradicts itself.
local path = require 'diana.path'
local text = require 'diana.text'
local find, sub, gsub = string.find, string.sub, string.gsub

local MOST_FIELDS = 1000

local request = {}
request.__index = request

-- `headers`: by name in small letters, a text or a list of them, as bytes. `uri`: as it was sent.
function request.new(method, uri, headers, peer)
  local at = find(uri, '?', 1, true)
  local query = at and sub(uri, at + 1) or ''
  local fragment = find(query, '#', 1, true)
  return setmetatable({
    method = method, path = text.from_bytes(at and sub(uri, 1, at - 1) or uri),
    query = text.from_latin1(fragment and sub(query, 1, fragment - 1) or query), headers = headers, peer = peer,
  }, request)
end

function request:segments()
  if self.reading then return self.reading end
  self.first_reading = self.first_reading or path.canonical(self.path)
  return self.first_reading
end

function request:lines(name)
  -- nginx's own table would find x-tenant for x_tenant, too.
  local found = rawget(self.headers, name)
  if found == nil then return {} end
  if type(found) ~= 'table' then return {text.from_latin1(found)} end
  local lines = {}
  for place, line in ipairs(found) do lines[place] = text.from_latin1(line) end
  return lines
end

-- The one value among these; nil and whether they contradict each other.
local function one_of(values, incomplete)
  local found
  for _, value in ipairs(values) do
    value = text.strip(value)
    if value ~= '' then
      if found and found ~= value then return nil, true end
      found = value
    end
  end
  if incomplete then return nil, true end
  return found
end

function request:header(name) return one_of(self:lines(name)) end

local function unquoted_plus(whole) return text.unquoted((gsub(whole, '+', ' '))) end

function request:query_value(name)
  local fields = text.split(self.query, '&', MOST_FIELDS)
  local found = {}
  for place = 1, math.min(#fields, MOST_FIELDS) do
    local key, value = fields[place], ''
    local at = find(key, '=', 1, true)
    if at then key, value = sub(key, 1, at - 1), sub(key, at + 1) end
    if key == name or unquoted_plus(key) == name then found[#found + 1] = unquoted_plus(value) end
  end
  return one_of(found, #fields > MOST_FIELDS)
end

local function without_quotes(value)
  if #value < 2 or sub(value, 1, 1) ~= '"' or sub(value, -1) ~= '"' then return value end
  local inner, parts, place = sub(value, 2, -2), {}, 1
  while place <= #inner do
    local at = find(inner, '\\', place, true)
    if not at or at == #inner then break end
    parts[#parts + 1] = sub(inner, place, at - 1)
    local octal = string.match(inner, '^[0-3][0-7][0-7]', at + 1)
    if octal then
      parts[#parts + 1] = text.from_latin1(string.char(tonumber(octal, 8)))
      place = at + 4
    else
      parts[#parts + 1] = sub(inner, at + 1, at + 1)
      place = at + 2
    end
  end
  return table.concat(parts) .. sub(inner, place)
end

function request:cookie(name)
  local found, incomplete = {}, false
  for _, line in ipairs(self:lines('cookie')) do
    local fields = text.split(line, ';', MOST_FIELDS)
    incomplete = incomplete or #fields > MOST_FIELDS
    for place = 1, math.min(#fields, MOST_FIELDS) do
      local key, value = fields[place], ''
      local at = find(key, '=', 1, true)
      if at then key, value = sub(key, 1, at - 1), sub(key, at + 1) end
      if text.strip(key) == name then found[#found + 1] = without_quotes(text.strip(value)) end
    end
  end
  return one_of(found, incomplete)
end

return request
