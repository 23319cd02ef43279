-- Every way in which an application behind may read a path: `diana/core/path_readings.py`, step by step. What that file says of why holds here.
local text = require 'diana.text'
local find, gsub, sub, lower = string.find, string.gsub, string.sub, string.lower
local split = text.split

local MOST_READINGS, MOST_WORK = 64, 4096

-- Percent-encoded signs that may mean something else than bare ones; no UTF-8 has these bytes. JOIN tells segments apart in a set.
local SLASH, DOT, BACKSLASH, SEMICOLON, JOIN = '\248', '\249', '\250', '\251', '\255'
local SIGNS = {['%2f'] = SLASH, ['%2e'] = DOT, ['%5c'] = BACKSLASH, ['%3b'] = SEMICOLON}

local path = {JOIN = JOIN}

local function without_empty(segments)
  local kept = {}
  for _, segment in ipairs(segments) do
    if segment ~= '' then kept[#kept + 1] = segment end
  end
  return kept
end

local function target_of(whole)
  if find(whole, '://', 1, true) then whole = gsub(whole, '^%a[%w+.-]*://[^/?]*', '', 1) end
  local at = find(whole, '?', 1, true)
  return at and sub(whole, 1, at - 1) or whole
end

local function is_plain(whole)
  return #whole > 1 and sub(whole, 1, 1) == '/' and sub(whole, -1) ~= '/' and not find(whole, '[%%;?#\\%c]')
    and not find(whole, '//', 1, true) and not find(whole, '/.', 1, true)
end

local function is_ambiguous(target)
  return find(target, '//', 1, true) or find(target, '[\\;#%c]') or find(target, '/%.%.?/') or find(target, '/%.%.?$')
    or find(target, '^%.%.?/') or find(target, '^%.%.?$') or find(target, '%%2[EeFf]') or find(target, '%%5[Cc]')
    or find(target, '%%[01]%x') or find(target, '%%7[Ff]') or find(target, '%%3[Bb]')
end

-- Decoded once, but for what may be read in two ways.
local function decoded(whole)
  local marked = gsub(whole, '%%[235][EeFfCcBb]', function(found) return SIGNS[lower(found)] end)
  return text.unquoted(marked)
end

local function counted(whole, pattern)
  local _, count = gsub(whole, pattern, '')
  return count
end

local function is_too_much(target)
  local encoded, signs = {}, 0
  for found in string.gmatch(target, '%%[235][EeFfCcBb]') do
    local sign = SIGNS[lower(found)]
    if sign then encoded[sign], signs = true, signs + 1 end
  end
  local function one(condition) return condition and 1 or 0 end
  local backslashes = one(find(target, '\\', 1, true)) + one(encoded[BACKSLASH])
  local parameters = one(find(target, ';', 1, true)) + one(encoded[SEMICOLON])
  local dots = one(find(target, '^%.') or find(target, '[/\\]%.')) + one(encoded[DOT])
  local ends = one(find(target, '#', 1, true))
  local controls = one(find(text.unquoted(target), '%c'))
  local readings = (1 + one(encoded[SLASH])) * (1 + backslashes) * (1 + parameters)
  readings = readings * (1 + dots) * (1 + controls) * (1 + ends) * 3
  local separators = counted(target, '/') + counted(target, '\\') + signs
  return readings > MOST_READINGS or readings * (separators + math.floor(text.length(target) / 32)) > MOST_WORK
end

local VARIANTS = {
  function(one) return {(gsub(one, SLASH, '/')), one} end,
  function(one)
    local bare = gsub(one, '\\', '/')
    return {(gsub(bare, BACKSLASH, '/')), (gsub(bare, BACKSLASH, '\\')), (gsub(one, BACKSLASH, '\\'))}
  end,
  function(one)
    return {(gsub(one, '[;' .. SEMICOLON .. '][^/]*', '')), (gsub(gsub(one, ';[^/]*', ''), SEMICOLON, ';')), (gsub(one, SEMICOLON, ';'))}
  end,
  function(one) return {(gsub(one, '%c[^/]*', '')), one} end,
}

local function resolved(segments)
  local kept = {}
  for _, segment in ipairs(segments) do
    if segment == '..' then kept[#kept] = nil elseif segment ~= '.' then kept[#kept + 1] = segment end
  end
  return kept
end

local function copied(segments)
  local copy = {}
  for place, segment in ipairs(segments) do copy[place] = segment end
  return copy
end

local function reading_of(segments)
  for place, segment in ipairs(segments) do
    if find(segment, '[\248\249]') then segments[place] = gsub(gsub(segment, SLASH, '/'), DOT, '.') end
  end
  return segments
end

-- What dot segments and empty ones may mean.
local function resolutions(one)
  local found = {}
  local spelled = gsub(one, DOT, '.')
  for _, way in ipairs {{resolved, spelled}, {resolved, one}, {copied, spelled}} do
    local resolve, source = way[1], way[2]
    local segments = split(sub(source, 1, 1) == '/' and sub(source, 2) or source, '/')
    local full = without_empty(segments)
    found[#found + 1] = reading_of(without_empty(resolve(full)))
    if #full < #segments then
      local kept = resolve(segments)
      found[#found + 1] = reading_of(without_empty(kept))
      while #kept > 0 and kept[#kept] == '' do kept[#kept] = nil end
      found[#found + 1] = reading_of(copied(kept))
    end
  end
  return found
end

-- A list of readings without doubles.
local function set_of_readings()
  local set, known = {}, {}
  return set, function(reading)
    local name = #reading .. JOIN .. table.concat(reading, JOIN)
    if not known[name] then
      known[name] = true
      set[#set + 1] = reading
      return true
    end
  end
end
path.set_of_readings = set_of_readings

-- Every reading, the canonical one first; nil if they are too many.
function path.readings(whole)
  if is_plain(whole) then return {split(sub(whole, 2), '/')} end
  local target = target_of(whole)
  if not is_ambiguous(target) then return {without_empty(split(text.unquoted(target), '/'))} end
  if is_too_much(target) then return nil end
  local at = find(target, '#', 1, true)
  local texts = at and {decoded(sub(target, 1, at - 1)), decoded(target)} or {decoded(target)}
  for _, variants in ipairs(VARIANTS) do
    local others, known = {}, {}
    for _, one in ipairs(texts) do
      for _, variant in ipairs(variants(one)) do
        if not known[variant] then
          known[variant] = true
          others[#others + 1] = variant
        end
      end
    end
    texts = others
  end
  local readings, add = set_of_readings()
  for _, one in ipairs(texts) do
    for _, reading in ipairs(resolutions(one)) do add(reading) end
  end
  return readings
end

function path.canonical(whole)
  if is_plain(whole) then return split(sub(whole, 2), '/') end
  local target = target_of(whole)
  local at = find(target, '#', 1, true)
  local one = decoded(at and sub(target, 1, at - 1) or target)
  for _, variants in ipairs(VARIANTS) do one = variants(one)[1] end
  return resolutions(one)[1]
end

-- All that may be a whole segment in some reading of it.
function path.words(whole)
  local one = gsub(decoded((gsub(target_of(whole), '#', '/'))), DOT, '.')
  local words = {}
  for _, word in ipairs(split(gsub(one, '[/\\;%c\248\250\251]', JOIN), JOIN)) do words[word] = true end
  return words
end

-- One path for one reading.
function path.spelled(segments)
  local whole = '/' .. table.concat(segments, '/')
  if not find(whole, '%', 1, true) and counted(whole, '/') <= math.max(1, #segments) then return whole end
  local parts = {}
  for place, segment in ipairs(segments) do parts[place] = gsub(gsub(segment, '%%', '%%25'), '/', '%%2F') end
  return '/' .. table.concat(parts, '/')
end

local function begins_with(reading, prefix)
  for place, segment in ipairs(prefix) do
    if reading[place] ~= segment then return false end
  end
  return true
end

-- All readings of what the client may have meant, and how many of them those are; behind them the same under mounts it was not sent under.
function path.readings_under(whole, mounts)
  local all, add = set_of_readings()
  local texts = {whole}
  for _, mount in ipairs(mounts) do
    local prefix = gsub(path.spelled(mount), '/+$', '')
    if prefix ~= '' and sub(whole, 1, #prefix + 1) == prefix .. '/' then texts[#texts + 1] = sub(whole, #prefix + 1) end
  end
  for _, one in ipairs(texts) do
    local readings = path.readings(one)
    if not readings then return nil end
    for _, reading in ipairs(readings) do add(reading) end
  end
  for _ = 1, #mounts do
    for _, prefix in ipairs(mounts) do
      for place = 1, #all do
        local reading = all[place]
        if begins_with(reading, prefix) then
          local rest = {}
          for at = #prefix + 1, #reading do rest[#rest + 1] = reading[at] end
          add(rest)
        end
      end
    end
  end
  local sent = #all
  for _, prefix in ipairs(mounts) do
    for place = 1, sent do
      local reading = all[place]
      if not begins_with(reading, prefix) then
        local longer = copied(prefix)
        for _, segment in ipairs(reading) do longer[#longer + 1] = segment end
        add(longer)
      end
    end
  end
  return all, sent
end

return path
