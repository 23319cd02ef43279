-- Reading JSON: what Diana writes, and nothing that runs. Debian's nginx brings no module for it.
local byte, find, sub, match = string.byte, string.find, string.sub, string.match

local ESCAPES = {['"'] = '"', ['\\'] = '\\', ['/'] = '/', b = '\b', f = '\f', n = '\n', r = '\r', t = '\t'}

local value_at

local function fail(whole, at) error('no JSON at byte ' .. at .. ' of ' .. #whole, 0) end

local function skip(whole, at) return find(whole, '[^ \t\r\n]', at) or #whole + 1 end

local function string_at(whole, at)
  local from, parts = at + 1, nil
  while true do
    local stop = find(whole, '["\\]', from)
    if not stop then fail(whole, at) end
    if byte(whole, stop) == 34 then
      if not parts then return sub(whole, from, stop - 1), stop + 1 end
      parts[#parts + 1] = sub(whole, from, stop - 1)
      return table.concat(parts), stop + 1
    end
    parts = parts or {}
    parts[#parts + 1] = sub(whole, from, stop - 1)
    local sign = sub(whole, stop + 1, stop + 1)
    if sign == 'u' then
      local point = tonumber(match(whole, '^00(%x%x)', stop + 2) or fail(whole, stop), 16)
      parts[#parts + 1] = point < 128 and string.char(point) or fail(whole, stop)
      from = stop + 6
    else
      parts[#parts + 1] = ESCAPES[sign] or fail(whole, stop)
      from = stop + 2
    end
  end
end

local function list_at(whole, at)
  local list = {}
  at = skip(whole, at + 1)
  if byte(whole, at) == 93 then return list, at + 1 end
  while true do
    list[#list + 1], at = value_at(whole, at)
    at = skip(whole, at)
    local sign = byte(whole, at)
    if sign == 93 then return list, at + 1 end
    if sign ~= 44 then fail(whole, at) end
    at = at + 1
  end
end

local function table_at(whole, at)
  local found = {}
  at = skip(whole, at + 1)
  if byte(whole, at) == 125 then return found, at + 1 end
  while true do
    at = skip(whole, at)
    if byte(whole, at) ~= 34 then fail(whole, at) end
    local name
    name, at = string_at(whole, at)
    at = skip(whole, at)
    if byte(whole, at) ~= 58 then fail(whole, at) end
    found[name], at = value_at(whole, at + 1)
    at = skip(whole, at)
    local sign = byte(whole, at)
    if sign == 125 then return found, at + 1 end
    if sign ~= 44 then fail(whole, at) end
    at = at + 1
  end
end

function value_at(whole, at)
  at = skip(whole, at)
  local sign = byte(whole, at)
  if sign == 34 then return string_at(whole, at) end
  if sign == 123 then return table_at(whole, at) end
  if sign == 91 then return list_at(whole, at) end
  if sub(whole, at, at + 3) == 'true' then return true, at + 4 end
  if sub(whole, at, at + 4) == 'false' then return false, at + 5 end
  local number = match(whole, '^-?%d[%d.eE+-]*', at)
  if not number or not tonumber(number) then fail(whole, at) end
  return tonumber(number), at + #number
end

local json = {}

function json.decode(whole)
  local value, at = value_at(whole, 1)
  if skip(whole, at) <= #whole then fail(whole, at) end
  return value
end

return json
