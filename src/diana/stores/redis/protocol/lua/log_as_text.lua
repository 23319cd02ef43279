-- For compare-and-swap a log travels whole, as text: `~` and (moment, count) of each entry, joined by commas.
local BLOCK = 256
local function digits(number) return string.format('%.0f', number) end

local function read_counter(key)
  local text = redis.pcall('GET', key)
  if type(text) ~= 'table' or not text.err then return text end
  local parts, found = {}, redis.call('ZRANGEBYSCORE', key, '0', '+inf', 'WITHSCORES')
  for place = 1, #found, 2 do
    parts[#parts + 1] = found[place + 1] .. ',' .. string.match(found[place], ':(%d+)$')
  end
  return '~' .. table.concat(parts, ',')
end

local function write_log(key, text, life)
  redis.call('DEL', key)
  local serial, through, total = 0, 0, 0
  for moment, count in string.gmatch(text, '(%d+),(%d+)') do
    if serial > 0 and math.fmod(serial, BLOCK) == 0 then
      redis.call('ZADD', key, digits(-total - 1), 'b' .. digits(serial / BLOCK))
      through = 0
    end
    through, total = through + tonumber(count), total + tonumber(count)
    redis.call('ZADD', key, moment, digits(serial) .. ':' .. digits(through) .. ':' .. count)
    serial = serial + 1
  end
  redis.call('PEXPIRE', key, life)
end
