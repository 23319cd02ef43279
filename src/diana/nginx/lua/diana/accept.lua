-- Which kind of body does the client like best? `diana/responses/preferred_kind.py`.
local text = require 'diana.text'

local LONGEST = 512
local NAMES = {
  json = {'application/problem+json', 'application/json'},
  text = {'text/plain'},
  html = {'text/html', 'application/xhtml+xml'},
}
local TOKEN = "[%w_!#$%%&'*+.^`|~-]+"

local function quality_of(parameters)
  for _, parameter in ipairs(text.split(parameters, ';')) do
    local stated = string.match(parameter, '^%s*[qQ]%s*=%s*(.-)%s*$')
    if stated then
      if stated == '0' or stated == '1' or string.find(stated, '^0%.%d?%d?%d?$') or string.find(stated, '^1%.0?0?0?$') then
        return tonumber(stated)
      end
      return nil
    end
  end
  return 1
end

local function ranges_of(line)
  local wanted = {}
  for _, item in ipairs(text.split(line, ',')) do
    if text.strip(item) ~= '' then
      local first, second, rest = string.match(item, '^%s*(' .. TOKEN .. ')/(' .. TOKEN .. ')%s*(.*)$')
      if not first or (rest ~= '' and string.sub(rest, 1, 1) ~= ';') then return nil end
      local quality = quality_of(rest)
      if not quality then return nil end
      wanted[string.lower(first .. '/' .. second)] = quality
    end
  end
  return wanted
end

local function quality(name, wanted)
  local family = string.match(name, '^[^/]*')
  return wanted[name] or wanted[family .. '/*'] or wanted['*/*'] or 0
end

-- Of equals the first, and the first too if the header cannot be read.
return function(lines, kinds)
  if #lines == 0 or #kinds == 1 then return kinds[1] end
  local line = table.concat(lines, ',')
  local wanted = #line <= LONGEST and ranges_of(line)
  if not wanted then return kinds[1] end
  local best, most
  for _, kind in ipairs(kinds) do
    for _, name in ipairs(NAMES[kind]) do
      local liked = quality(name, wanted)
      if not most or liked > most then best, most = kind, liked end
    end
  end
  return best
end
