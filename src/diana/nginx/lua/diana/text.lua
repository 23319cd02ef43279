-- Text as Python has it: the UTF-8 of its characters, in which a byte that is no UTF-8 is a surrogate of its own (U+DC80 to U+DCFF).
local byte, char, find, gsub, sub = string.byte, string.char, string.find, string.gsub, string.sub

local text = {}

-- How long a valid character at this place is; nil if there is none.
local function length_at(bytes, place)
  local first, second, third, fourth = byte(bytes, place, place + 3)
  local function continues(one, low, high) return one and one >= (low or 0x80) and one <= (high or 0xBF) end
  if first < 0x80 then return 1 end
  if first >= 0xC2 and first <= 0xDF then return continues(second) and 2 end
  if first >= 0xE0 and first <= 0xEF then
    local low, high = first == 0xE0 and 0xA0 or 0x80, first == 0xED and 0x9F or 0xBF
    return continues(second, low, high) and continues(third) and 3
  end
  if first >= 0xF0 and first <= 0xF4 then
    local low, high = first == 0xF0 and 0x90 or 0x80, first == 0xF4 and 0x8F or 0xBF
    return continues(second, low, high) and continues(third) and continues(fourth) and 4
  end
end

-- bytes.decode("utf-8", "surrogateescape")
function text.from_bytes(bytes)
  if not find(bytes, '[\128-\255]') then return bytes end
  local parts, place = {}, 1
  while place <= #bytes do
    local length = length_at(bytes, place)
    if length then
      parts[#parts + 1] = sub(bytes, place, place + length - 1)
    else
      local one = byte(bytes, place)
      parts[#parts + 1] = char(0xED, 0xB0 + math.floor(one / 64), 0x80 + one % 64)
    end
    place = place + (length or 1)
  end
  return table.concat(parts)
end

local function wide(one)
  one = byte(one)
  return char(0xC0 + math.floor(one / 64), 0x80 + one % 64)
end

-- bytes.decode("latin-1")
function text.from_latin1(bytes)
  if not find(bytes, '[\128-\255]') then return bytes end
  return (gsub(bytes, '[\128-\255]', wide))
end

-- How many characters.
function text.length(whole)
  if not find(whole, '[\128-\191]') then return #whole end
  local _, more = gsub(whole, '[\128-\191]', '')
  return #whole - more
end

-- The first so many characters.
function text.cut(whole, most)
  if #whole <= most then return whole end
  local count = 0
  for place = 1, #whole do
    local one = byte(whole, place)
    if one < 0x80 or one > 0xBF then
      count = count + 1
      if count > most then return sub(whole, 1, place - 1) end
    end
  end
  return whole
end

local function decoded_run(run)
  if not find(run, '%', 1, true) then return nil end
  return text.from_bytes((gsub(run, '%%(%x%x)', function(digits) return char(tonumber(digits, 16)) end)))
end

-- urllib.parse.unquote(…, errors="surrogateescape")
function text.unquoted(whole)
  if not find(whole, '%', 1, true) then return whole end
  return (gsub(whole, '[%z\1-\127]+', decoded_run))
end

-- What `str.strip` takes for blank, beyond ASCII.
local BLANKS = {['\194\133'] = true, ['\194\160'] = true, ['\225\154\128'] = true, ['\226\128\168'] = true, ['\226\128\169'] = true,
  ['\226\128\175'] = true, ['\226\129\159'] = true, ['\227\128\128'] = true}
for last = 128, 138 do BLANKS['\226\128' .. char(last)] = true end

function text.strip(whole)
  local first, last = 1, #whole
  while first <= last do
    if find(whole, '^[\9-\13\28-\32]', first) then first = first + 1
    elseif BLANKS[sub(whole, first, first + 1)] then first = first + 2
    elseif BLANKS[sub(whole, first, first + 2)] then first = first + 3
    else break end
  end
  while last >= first do
    if find(sub(whole, last, last), '[\9-\13\28-\32]') then last = last - 1
    elseif BLANKS[sub(whole, last - 1, last)] then last = last - 2
    elseif BLANKS[sub(whole, last - 2, last)] then last = last - 3
    else break end
  end
  return sub(whole, first, last)
end

-- str.split(): by blanks of any kind.
function text.words(whole)
  local words = {}
  whole = gsub(whole, '[\9-\13\28-\31]', ' ')
  if find(whole, '[\128-\255]') then
    whole = gsub(gsub(whole, '\194[\133\160]', ' '), '[\225-\227][\128-\191][\128-\191]', function(one) return BLANKS[one] and ' ' end)
  end
  for word in string.gmatch(whole, '[^ ]+') do words[#words + 1] = word end
  return words
end

-- str.lower() of what was latin-1
function text.lower(whole)
  whole = string.lower(whole)
  if not find(whole, '\195', 1, true) then return whole end
  return (gsub(whole, '\195([\128-\150\152-\158])', function(one) return '\195' .. char(byte(one) + 0x20) end))
end

function text.split(whole, separator, most)
  local parts, from = {}, 1
  while not most or #parts < most do
    local at = find(whole, separator, from, true)
    if not at then break end
    parts[#parts + 1] = sub(whole, from, at - 1)
    from = at + #separator
  end
  parts[#parts + 1] = sub(whole, from)
  return parts
end

-- The code points, one by one.
function text.points(whole)
  local points, place = {}, 1
  while place <= #whole do
    local one, two, three, four = byte(whole, place, place + 3)
    if one < 0x80 then points[#points + 1], place = one, place + 1
    elseif one < 0xE0 then points[#points + 1], place = (one - 0xC0) * 64 + two - 0x80, place + 2
    elseif one < 0xF0 then points[#points + 1], place = ((one - 0xE0) * 64 + two - 0x80) * 64 + three - 0x80, place + 3
    else points[#points + 1], place = (((one - 0xF0) * 64 + two - 0x80) * 64 + three - 0x80) * 64 + four - 0x80, place + 4 end
  end
  return points
end

return text
