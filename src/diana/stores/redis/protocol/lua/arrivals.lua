-- How often keys are asked for per second, summed over nodes. KEYS: what was said in even seconds, and in odd ones. ARGV: of each
-- key its name and how often. Gives the sums: of the second before, or of this one, if more was said in it.
local second = tonumber(redis.call('TIME')[1])
local now, before = KEYS[1 + second % 2], KEYS[2 - second % 2]
if redis.call('HGET', now, '') ~= tostring(second) then
  redis.call('DEL', now)
  redis.call('HSET', now, '', second)
end
local is_complete = redis.call('HGET', before, '') == tostring(second - 1)
local sums = {}
for place = 1, #ARGV, 2 do
  local sum = tonumber(redis.call('HGET', now, ARGV[place]) or 0) + tonumber(ARGV[place + 1])
  redis.call('HSET', now, ARGV[place], sum)
  local last = is_complete and tonumber(redis.call('HGET', before, ARGV[place]) or 0) or 0
  sums[#sums + 1] = math.max(sum, last)
end
redis.call('PEXPIRE', now, 5000)
return sums
