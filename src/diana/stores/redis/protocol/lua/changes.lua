-- What has changed. KEYS as for `override`; ARGV: since when overrides, since when counters that were reset, and how many of each at most.
-- Gives of each override its field, when, and what it holds; of each counter its key and when; and how many overrides are told of in all.
local function since(key, when)
  return redis.call('ZRANGEBYSCORE', key, '(' .. when, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
end
local changed, told = since(KEYS[2], ARGV[1]), {}
for place = 1, #changed, 2 do
  told[#told + 1] = changed[place]
  told[#told + 1] = changed[place + 1]
  told[#told + 1] = redis.call('HGET', KEYS[1], changed[place]) or ''
end
return {told, since(KEYS[4], ARGV[2]), redis.call('ZCARD', KEYS[2])}
