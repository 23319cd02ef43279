-- A node says that it lives. KEYS: the nodes by when they were last heard of, what they say of themselves, and what they weigh, with the
-- sum behind an empty name. ARGV: the node, what it says, after how many ms of silence a node is gone ("0": this node leaves), and its
-- weight. Gives how many there are, the time, and what they weigh together.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local silence = tonumber(ARGV[3])
local changed = false
local function forget(node)
  redis.call('ZREM', KEYS[1], node)
  redis.call('HDEL', KEYS[2], node)
  redis.call('HDEL', KEYS[3], node)
  changed = true
end
local function told()
  local nodes, known = redis.call('ZCARD', KEYS[1]), redis.call('HLEN', KEYS[3])
  if nodes == 0 then
    redis.call('DEL', KEYS[3])
    return {0, time, 0}
  end
  -- A node that knows of no weights weighs 1.
  if changed or known ~= nodes + 1 then
    local sum = 0
    for _, node in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do sum = sum + tonumber(redis.call('HGET', KEYS[3], node) or 1) end
    redis.call('HSET', KEYS[3], '', sum)
  end
  return {nodes, time, tonumber(redis.call('HGET', KEYS[3], '') or 0)}
end
if silence == 0 then
  forget(ARGV[1])
  return told()
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
if redis.call('HGET', KEYS[3], ARGV[1]) ~= ARGV[4] then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
  changed = true
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - silence))) do
  forget(gone)
end
for place = 1, #KEYS do redis.call('PEXPIRE', KEYS[place], 4 * silence) end
return told()
