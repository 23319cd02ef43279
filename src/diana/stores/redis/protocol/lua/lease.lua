local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local deadline = tonumber(ARGV[2])
if deadline and now > deadline then return {now, ARGV[3], TOO_LATE} end

local kernel, window_end = kernel_of(ARGV[4])
if not kernel then return redis.error_reply('DIANA there is no leased algorithm ' .. ARGV[4]) end
local params, uncapped = decode(ARGV[5]), decode(ARGV[6])
local node, writes = ARGV[7], ARGV[8] == '1'
local cost, seq, base, used = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local keep, want, start, refill = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16])
local ttl, life, limit = tonumber(ARGV[17]), tonumber(ARGV[18]), tonumber(ARGV[19])
local slowest = ARGV[20] ~= '' and decode(ARGV[20])

local function numbers_of(text)
  return text and decode('[' .. text .. ']') or nil
end

local function text_of(numbers)
  local digits = {}
  for place = 1, #numbers do
    local number = numbers[place]
    if number ~= number or number < 0 or number >= WHOLE then error('DIANA a state out of range') end
    digits[place] = format('%.0f', number)
  end
  return table.concat(digits, ',')
end

local state = numbers_of(call('GET', KEYS[1]))
local changed, touched, gone = false, false, {}

-- What was admitted is counted, also above a limit that was lowered meanwhile.
local function count(amount)
  if amount == 0 then return end
  local _, _, room = kernel(state, uncapped, 0, now)
  amount = math.min(amount, room)
  if amount > 0 then
    state = kernel(state, uncapped, amount, now)
    changed = true
  end
end

local sums = numbers_of(call('HGET', KEYS[2], ''))
local total, earliest, last = 0, WHOLE - 1, now
if sums then total, earliest, last = sums[1], sums[2], sums[3] end
local back = last - now
local moved = {}
if back > SECOND then last = now end
if sums and (now >= earliest or back > SECOND) then
  local all, swept = call('HGETALL', KEYS[2]), 0
  total, earliest, touched = 0, WHOLE - 1, true
  for place = 1, #all, 2 do
    if all[place] ~= '' then
      local one = numbers_of(all[place + 1])
      if back > SECOND then
        one[5], one[6] = math.max(1, one[5] - back), 0
        moved[all[place]] = one
      end
      if one[6] > 0 and one[6] <= now then
        gone[all[place]] = true
      elseif one[5] <= now then
        swept = swept + one[4]
        gone[all[place]] = true
      else
        total = total + one[4]
        earliest = math.min(earliest, one[5])
        if one[6] > 0 then earliest = math.min(earliest, one[6]) end
      end
    end
  end
  count(swept)
end

local mine
if node ~= '' and not gone[node] then mine = moved[node] or numbers_of(call('HGET', KEYS[2], node)) end
local stale, kept, leaves = false, 0, false
if mine then
  stale = seq <= mine[1]
  if not stale then
    local delta = mine[4]
    if base == mine[1] then
      delta = math.min(used, mine[4])
    elseif base == mine[2] then
      delta = math.min(math.max(0, used - mine[3]), mine[4])
    end
    kept = math.min(keep, mine[4] - delta)
    count(delta)
    total = total - mine[4]
  end
end

local function time_until(others, amount)
  if amount > limit then return NEVER end
  local _, passed, _, retry = kernel(state, params, others + amount, now)
  if passed == 1 then return 0 end
  return retry == NEVER and ttl or retry
end

local grant
local denies_until = -WHOLE
if stale then
  grant = {now, ARGV[3], STALE, 0, 0, 0, 0, 0, 0, 0}
else
  local held = total + kept
  local _, _, remaining, _, reset = kernel(state, params, 0, now)
  local room, retry = remaining - held, 0
  local passed = cost == 0 or cost <= room
  if not passed then
    retry = time_until(held, cost)
    denies_until = over_up(reset, 1000)
  elseif cost > 0 then
    local after, _, _, _, until_reset = kernel(state, params, cost, now)
    state, reset, room, changed = after, until_reset, room - cost, true
  end
  local askers = call('HLEN', KEYS[2])
  if sums then askers = askers - 1 end
  for _ in pairs(gone) do askers = askers - 1 end
  if mine then askers = askers - 1 end
  local ends = window_end and window_end(state, params, now)
  local valid, granted = ends and math.min(ttl, ends - now) or ttl, 0
  if node ~= '' and want > 0 then
    askers = askers + 1
    local most = start
    if mine then most = math.max(1, over(refill, askers)) end
    if passed then
      granted = math.max(0, math.min(want, most, room))
      if granted == 0 then retry = time_until(held, 1) end
    end
  end
  if node ~= '' then
    touched, last = true, now
    gone[node] = nil
    moved[node] = nil
    if want > 0 or kept > 0 then
      total = held + granted
      earliest = math.min(earliest, now + ttl, ends or WHOLE - 1)
      if writes then call('HSET', KEYS[2], node, text_of({seq, base, used, kept + granted, now + ttl, ends or 0})) end
    else
      total = held
      gone[node] = true
    end
  end
  grant = {now, ARGV[3], passed and 1 or 0, granted, kept, valid, math.max(0, room - granted), retry, reset, askers}
end

if writes then
  for name in pairs(gone) do call('HDEL', KEYS[2], name) end
  for name, one in pairs(moved) do
    if not gone[name] then call('HSET', KEYS[2], name, text_of(one)) end
  end
  if touched then
    if call('HLEN', KEYS[2]) > (sums and 1 or 0) then
      call('HSET', KEYS[2], '', text_of({total, earliest, last}))
      life = life + GRACE
      if call('PTTL', KEYS[2]) < life then call('PEXPIRE', KEYS[2], format('%.0f', life)) end
    else
      call('DEL', KEYS[2])
    end
  end
  if changed then
    local _, _, _, _, reset = kernel(state, params, 0, now)
    if slowest then
      local _, _, _, _, longer = kernel(state, slowest, 0, now)
      reset = math.max(reset, longer)
    end
    local lives = math.max(over_up(reset, 1000) + GRACE, call('PTTL', KEYS[1]))
    call('SET', KEYS[1], text_of(state), 'PX', format('%.0f', lives))
  elseif denies_until > call('PTTL', KEYS[1]) then
    call('PEXPIRE', KEYS[1], format('%.0f', denies_until + GRACE))  -- a faster limit charged it last
  end
end
return grant
