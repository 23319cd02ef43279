-- KEYS: overrides, when each changed, when each is to be swept away, which counters were reset, when anything changed last.
-- ARGV: `set`, a field, what it is to hold ("": no longer), until when in ms ("": without end), and for how many ms what is gone is still
-- told of; or `forget` and a counter.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms, swept = math.floor(now / 1000), tonumber(ARGV[5])
redis.call('SET', KEYS[5], string.format('%.0f', now))
local function after_all_others(key)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  return string.format('%.0f', math.max(now, last and tonumber(last) + 1 or 0))
end
if ARGV[1] == 'forget' then
  redis.call('ZADD', KEYS[4], after_all_others(KEYS[4]), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now - swept * 1000))
  redis.call('PEXPIRE', KEYS[4], 2 * swept)
  return 1
end
for _, ended in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now_ms, 'LIMIT', 0, 100)) do
  redis.call('HDEL', KEYS[1], ended)
  redis.call('ZREM', KEYS[2], ended)
  redis.call('ZREM', KEYS[3], ended)
end
redis.call('ZREM', KEYS[3], ARGV[2])
local was = redis.call('HEXISTS', KEYS[1], ARGV[2])
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[2])
  redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms + swept), ARGV[2])
else
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  if ARGV[4] ~= '' then redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2]) end
end
redis.call('ZADD', KEYS[2], after_all_others(KEYS[2]), ARGV[2])
return was
