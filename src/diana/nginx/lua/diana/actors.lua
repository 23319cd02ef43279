-- Who is asking? `diana/actors`, one function each: the value, or nil and whether the request contradicts itself.
local address = require 'diana.address'
local keys = require 'diana.keys'
local path = require 'diana.path'
local text = require 'diana.text'
local unicode = require 'diana.unicode'

local function as_int(value)
  if not value then return nil end
  local number = unicode.with_ascii_digits(text.strip(value))
  number = string.gsub(number, '%.0+$', '')
  if string.find(number, '^%+?0[0_]*%-') then number = string.gsub(number, '^[^%-]*', '') end
  local sign, digits = string.match(number, '^([+-]?)([%d_]*%d)$')
  if not digits then return nil end
  digits = string.gsub(string.gsub(digits, '_', ''), '^0+', '')
  if digits == '' then return '0' end
  return (sign == '-' and '-' or '') .. digits
end

local function converted(actor, value, contradicts)
  if actor.as_int then return as_int(value), contradicts end
  return value, contradicts
end

local IDENTITIES = {
  all = function() return '' end,
  ip = function(_, request, proxies) return address.client(request, proxies) end,
  host = function(_, request)
    local host, contradicts = request:header('host')
    if not host then return nil, contradicts end
    local name = string.sub(host, 1, 1) == '[' and string.match(host, '^[^%]]*') or string.match(host, '^[^:]*')
    name = string.gsub(text.lower(name), '%.+$', '')
    return name ~= '' and name or nil
  end,
  path = function(_, request) return path.spelled(request:segments()) end,
  header = function(actor, request)
    local value, contradicts = request:header(actor.name)
    if value and actor.credential then
      local words = text.words(value)
      words[1] = text.lower(words[1])
      value = table.concat(words, ' ')
    end
    return value, contradicts
  end,
  query = function(actor, request) return converted(actor, request:query_value(actor.name)) end,
  cookie = function(actor, request) return request:cookie(actor.name) end,
  segment = function(actor, request) return converted(actor, request:segments()[actor.place]) end,
}

local actors = {}

function actors.value(actor, request, proxies) return IDENTITIES[actor.kind](actor, request, proxies) end

local function key_of_value(actor, value)
  if actor.secret then return keys.from_secret(value) end
  return keys.from_value(value)
end

-- The key of one actor; nil and whether the request contradicts itself.
function actors.key(actor, request, proxies)
  local value, contradicts = actors.value(actor, request, proxies)
  if value == nil then return nil, contradicts end
  return key_of_value(actor, value)
end

-- Of all actors of a rule together.
function actors.key_of_all(list, request, proxies)
  if #list == 1 then return actors.key(list[1], request, proxies) end
  local parts = {}
  for place, actor in ipairs(list) do
    local key, contradicts = actors.key(actor, request, proxies)
    if not key then return nil, contradicts end
    parts[place] = key
  end
  return keys.from_parts(parts)
end

return actors
