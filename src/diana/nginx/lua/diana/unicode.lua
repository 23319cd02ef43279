-- What Python's own tables say of characters beyond ASCII: which are not printable, and which are digits. `diana export` writes them.
local tables = require 'diana.unicode_tables'
local text = require 'diana.text'

local unicode = {}

-- Ranges in order: first and last of each.
function unicode.is_not_printable(point)
  if point < 127 then return point < 32 end
  local ranges = tables.not_printable
  local low, high = 1, #ranges / 2
  while low <= high do
    local middle = math.floor((low + high) / 2)
    if point < ranges[2 * middle - 1] then high = middle - 1
    elseif point > ranges[2 * middle] then low = middle + 1
    else return true end
  end
  return false
end

function unicode.with_ascii_digits(whole)
  if not string.find(whole, '[\128-\255]') then return whole end
  local signs = {}
  for place, point in ipairs(text.points(whole)) do
    signs[place] = '?'
    if point < 128 then
      signs[place] = string.char(point)
    else
      for _, zero in ipairs(tables.zeros) do
        if point >= zero and point <= zero + 9 then signs[place] = string.char(48 + point - zero) end
      end
    end
  end
  return table.concat(signs)
end

return unicode
