-- A place taken or given back in the ordinary way: nothing has expired, and nothing behind it is to be changed. Nothing if it is not so:
-- then the log decides, of which this is the layout (see `log_in_lua`).
local function entry_of(found)
  local serial, through, count = string.match(found[1], '^(%d+):(%d+):(%d+)$')
  return tonumber(serial), tonumber(through), tonumber(count), tonumber(found[2])
end

return function(word, key, params, text)
  local most, hold, former, ends = params[1], params[2], params[4], params[5]
  if former and now < ends then hold = former end
  local cost, made = string.match(text, '^([1-9]%d*)@?(%d*)$')
  cost, made = tonumber(cost), tonumber(made)
  if not cost or cost > most or (word == 'refund') ~= (made ~= nil) then return end
  local newest = try('ZRANGE', key, -1, -1, 'WITHSCORES')
  if newest.err then return end
  if not newest[1] then
    if word == 'refund' then return {1} end
    local digits = format('%.0f', cost)
    call('ZADD', key, now_text, '0:' .. digits .. ':' .. digits)
    live_for(key, hold)
    return {1, 1, most - cost, 0, hold, 0}
  end
  local oldest = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local from, from_through, from_count, from_moment = entry_of(oldest)
  local to, to_through, to_count, to_moment = entry_of(newest)
  if not from or from_moment <= now - hold or to_moment - now > SECOND or over(from, 256) ~= over(to, 256) then return end
  if word == 'take' then
    local amount = to_through - from_through + from_count + cost
    if amount > most or fmod(to + 1, 256) == 0 then return end
    local moment = to_moment >= now and to_moment + 1 or now
    local member = format('%.0f:%.0f:%.0f', to + 1, to_through + cost, cost)
    call('ZADD', key, format('%.0f', moment), member)
    live_for(key, moment + hold - now)
    return {1, 1, most - amount, 0, moment + hold - now, 0}
  end
  local struck = made == to_moment and newest[1] or made == from_moment and oldest[1]
  if not struck or cost < (made == to_moment and to_count or from_count) then return end
  call('ZREM', key, struck)
  return {1}
end
