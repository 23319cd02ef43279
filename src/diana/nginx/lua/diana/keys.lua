-- Identities as keys, and keys as counters of the store: `diana/core/actor.py` and `diana/stores/redis/protocol/wire_format.py`.
local ffi = require 'ffi'
local remembering = require 'diana.remembering'
local text = require 'diana.text'
local unicode = require 'diana.unicode'
local find, gsub, format = string.find, string.gsub, string.format

ffi.cdef 'unsigned char *SHA256(const unsigned char *bytes, size_t length, unsigned char *digest);'
local buffer = ffi.new 'unsigned char[32]'

local LONGEST_PLAIN, LONGEST_KEY = 64, 512

local keys = {}

local HEX = {}
for number = 0, 255 do HEX[number] = format('%02x', number) end

keys.digest = remembering(function(value)
  ffi.C.SHA256(value, #value, buffer)
  local digits = {}
  for place = 0, 15 do digits[place + 1] = HEX[buffer[place]] end
  return table.concat(digits)
end)

local function is_printable(value)
  for _, point in ipairs(text.points(value)) do
    if unicode.is_not_printable(point) then return false end
  end
  return true
end

function keys.from_value(value)
  if text.length(value) <= LONGEST_PLAIN and (not find(value, '[\128-\255]') or is_printable(value)) then return '=' .. value end
  return '#' .. keys.digest(value)
end

function keys.from_secret(value) return '#' .. keys.digest(value) end

function keys.from_parts(parts)
  local joined = {}
  for place, key in ipairs(parts) do joined[place] = text.length(key) .. key end
  return table.concat(joined)
end

-- `id` is written already as the store has it.
function keys.counter(id, key)
  if text.length(key) > LONGEST_KEY then return id .. '#' .. keys.digest(key) end
  if find(key, '[%%{}]') then key = gsub(gsub(gsub(key, '%%', '%%25'), '{', '%%7B'), '}', '%%7D') end
  return id .. '|' .. key
end

return keys
