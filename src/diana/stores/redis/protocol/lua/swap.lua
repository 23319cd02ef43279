-- The second half. ARGV: the latest time at which it may still write, or ""; then for each key what it held ("" for nothing), what it
-- is to hold ("" to leave it, "-" for nothing), and for how many ms at least: it never lives shorter than it would have. Gives 1 if all
-- were as they were, and 0 and what is there if not.
local time = redis.call('TIME')
local now, deadline = tonumber(time[1]) * 1000000 + tonumber(time[2]), tonumber(ARGV[1])
if deadline and now > deadline then return {TOO_LATE} end
local found, same = {0, time}, true
for place = 1, #KEYS do
  local there = read_counter(KEYS[place])
  found[place + 2] = there
  if (there or '') ~= ARGV[3 * place - 1] then same = false end
end
if not same then return found end
for place = 1, #KEYS do
  local after, life = ARGV[3 * place], tonumber(ARGV[3 * place + 1])
  life = string.format('%.0f', math.max(life, redis.call('PTTL', KEYS[place])))
  if after == '-' then
    redis.call('DEL', KEYS[place])
  elseif string.sub(after, 1, 1) == '~' then
    write_log(KEYS[place], after, life)
  elseif after ~= '' then
    redis.call('SET', KEYS[place], after, 'PX', life)
  end
end
return {1}
