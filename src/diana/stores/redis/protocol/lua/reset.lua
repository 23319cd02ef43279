-- Forget these counters. ARGV: the latest time at which it may still do so, or "". Gives how many there were, or -1 if it is too late.
local deadline = tonumber(ARGV[1] or '')
if deadline then
  local time = redis.call('TIME')
  if tonumber(time[1]) * 1000000 + tonumber(time[2]) > deadline then return TOO_LATE end
end
local gone = 0
for place = 1, #KEYS do gone = gone + redis.call('DEL', KEYS[place]) end
return gone
