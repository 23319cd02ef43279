-- Make a limit known, or change it, for all who look it up: KEYS the limit's own key, ARGV the limit as `acquire` takes it,
-- and for how many ms it is to be known.
-- What was counted stays: a counter is converted when it is next read.
local code, lists = string.match(ARGV[1], '^%["([^"]+)",(%[[%d,]*%].*)%]$')
local function fits(numbers)
  local _, count = string.gsub(numbers or '', '%d+', '')
  return numbers and count >= COUNTS[code][1] and count <= COUNTS[code][2]
end
local own, slowest = string.match(lists or '', '^%[([%d,]*)%],%[([%d,]*)%]$')
own = own or string.match(lists or '', '^%[([%d,]*)%]$')
if not COUNTS[code or ''] or not fits(own) or slowest and not fits(slowest) then
  return redis.error_reply('DIANA a limit is written ["CODE",[numbers]], with as many numbers as the algorithm has')
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return redis.status_reply('OK')
