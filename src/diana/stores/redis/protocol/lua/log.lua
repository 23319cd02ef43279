local function open_log(key)
  local BLOCK, STEP, TOLD = 256, 128, 64
  local log = {}
  local newest, first, cut, clamped, added, asked
  local spoilt, emptied, released = false, false, false
  local bases = {[0] = 0}

  local function digits(number) return format('%.0f', number) end

  local function entry_of(found)
    local serial, through, count = string.match(found[1] or '', '^(%d+):(%d+):(%d+)$')
    if not serial then return nil end
    serial = tonumber(serial)
    return {member = found[1], moment = tonumber(found[2]), serial = serial, block = over(serial, BLOCK),
      through = tonumber(through), count = tonumber(count)}
  end

  local function at_rank(rank) return entry_of(call('ZRANGE', key, rank, rank, 'WITHSCORES')) end

  local function base_of(block)
    if not bases[block] then bases[block] = -tonumber(call('ZSCORE', key, 'b' .. digits(block))) - 1 end
    return bases[block]
  end

  -- How much was admitted after one entry, up to and with a later one.
  local function between(one, other)
    if one.block == other.block then return other.through - one.through end
    return base_of(other.block) + other.through - base_of(one.block) - one.through
  end

  local function add(before, moment, count)
    if moment ~= moment or moment < 0 or moment >= WHOLE or count >= WHOLE then error('DIANA a log out of range') end
    local serial, through = 0, count
    if before then
      serial = before.serial + 1
      if fmod(serial, BLOCK) == 0 then
        local block = over(serial, BLOCK)
        bases[block] = base_of(before.block) + before.through
        call('ZADD', key, digits(-bases[block] - 1), 'b' .. digits(block))
        if first then call('ZREMRANGEBYSCORE', key, '(' .. digits(-base_of(first.block) - 1), '(0') end
      else
        through = before.through + count
      end
    end
    local member = digits(serial) .. ':' .. digits(through) .. ':' .. digits(count)
    call('ZADD', key, digits(moment), member)
    return {member = member, moment = moment, serial = serial, block = over(serial, BLOCK), through = through, count = count}
  end

  local function load()
    local found = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
    if found.err then
      -- A text is what an earlier version has written; anything else is another program's.
      if type(redis.pcall('GET', key)) == 'table' then error(found) end
      found, spoilt = {}, true
    end
    newest = entry_of(found)
    log.newest = newest and newest.moment
  end

  function log.clamp(moment)
    if newest and newest.moment > moment then clamped, log.newest = moment, moment end
  end

  function log.drop(moment)
    cut, first, log.amount = moment, nil, 0
    if not newest then return end
    if log.newest <= moment then
      log.newest, newest, emptied = nil, nil, true
      return
    end
    local from = moment < 0 and '0' or '(' .. digits(moment)
    first = entry_of(call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
    log.amount = between(first, newest) + first.count
  end

  function log.nth(number)
    local found
    if number <= first.count then
      found = first
    elseif number > log.amount - newest.count then
      found = newest
    else
      local low = call('ZCOUNT', key, '-inf', '(' .. digits(first.moment))
      local high = low + call('ZCOUNT', key, digits(first.moment), '+inf') - 1
      while low < high do
        local middle = over(low + high, 2)
        if first.count + between(first, at_rank(middle)) >= number then high = middle else low = middle + 1 end
      end
      found = at_rank(low)
    end
    asked = found
    return clamped and math.min(found.moment, clamped) or found.moment
  end

  function log.append(moment, count)
    added, log.newest, log.amount = {moment, count}, moment, log.amount + count
  end

  -- The clock was set back: what is later is one entry, as of now.
  local function write_clamped()
    local earlier = call('ZCOUNT', key, '-inf', '(' .. digits(clamped))
    local before = earlier > 0 and at_rank(earlier - 1) or nil
    local count = before and between(before, newest) or between(first, newest) + first.count
    if before then
      call('ZREMRANGEBYSCORE', key, digits(clamped), '+inf')
    else
      call('DEL', key)
      first, bases = nil, {[0] = 0}
    end
    newest, clamped = add(before, clamped, count), nil
  end

  local function remove_expired()
    local gone = cut < 0 and 0 or call('ZCOUNT', key, '0', digits(cut))
    if gone == 0 then return end
    local last = digits(cut)
    if gone > STEP then last = call('ZRANGEBYSCORE', key, '0', last, 'WITHSCORES', 'LIMIT', STEP - 1, 1)[2] end
    call('ZREMRANGEBYSCORE', key, '0', last)
  end

  function log.write(reset)
    if spoilt or emptied then call('DEL', key) end
    if released and not added then return end
    if newest then
      if clamped then write_clamped() end
      remove_expired()
    end
    if added then
      local moment, count = added[1], added[2]
      if newest and newest.moment == moment then
        call('ZREM', key, newest.member)
        local before = {serial = newest.serial - 1, block = newest.block, through = newest.through - newest.count}
        count = count + newest.count
        if fmod(newest.serial, BLOCK) == 0 then
          call('ZADD', key, digits(moment), digits(newest.serial) .. ':' .. digits(count) .. ':' .. digits(count))
        else
          add(before, moment, count)
        end
      else
        add(newest, moment, count)
      end
    end
    live_for(key, reset)
  end

  function log.strike(moment, count)
    if not newest then return end
    if clamped then
      write_clamped()
      log.drop(cut)
    end
    if moment <= cut then return end
    local struck = entry_of(call('ZRANGEBYSCORE', key, digits(moment), digits(moment), 'WITHSCORES'))
    count = struck and math.min(count, struck.count) or 0
    if count == 0 then return end
    local old, new = {struck.member}, {}
    if count < struck.count then
      new = {digits(moment), format('%.0f:%.0f:%.0f', struck.serial, struck.through - count, struck.count - count)}
    end
    local later = call('ZRANGEBYSCORE', key, '(' .. digits(moment), '+inf', 'WITHSCORES', 'LIMIT', 0, BLOCK)
    for place = 1, #later, 2 do
      local entry = entry_of({later[place], later[place + 1]})
      if entry.block ~= struck.block then break end
      old[#old + 1] = entry.member
      new[#new + 1] = later[place + 1]
      new[#new + 1] = format('%.0f:%.0f:%.0f', entry.serial, entry.through - count, entry.count)
    end
    call('ZREM', key, unpack(old))
    if #new > 0 then call('ZADD', key, unpack(new)) end
    for block = struck.block + 1, newest.block do call('ZADD', key, 'XX', 'INCR', digits(count), 'b' .. digits(block)) end
    bases = {[0] = 0}
    load()
    if newest then log.drop(cut) else emptied, log.amount = true, 0 end
  end

  -- The same where hardly anything expires, as of places: the only one, the oldest and the newest need no other entry changed.
  function log.release(moment, count)
    if not newest or clamped or spoilt or moment <= cut then return log.strike(moment, count) end
    local struck = moment == newest.moment and newest or moment == first.moment and first
    if not struck or count < struck.count then return log.strike(moment, count) end
    released = true
    if first.serial == newest.serial then
      emptied, newest, first, log.newest, log.amount = true, nil, nil, nil, 0
    elseif struck == newest then
      call('ZREM', key, struck.member)
      load()
      log.drop(cut)
    else
      call('ZREMRANGEBYSCORE', key, '0', digits(moment))
      first, log.amount = nil, log.amount - struck.count
    end
  end

  -- What it takes to deny again: the oldest entries as far as the n-th that was asked for, the newest moment, and how much there is.
  function log.told()
    if clamped then return '' end
    if not newest then return '-' end
    local last, from = asked or first, cut < 0 and '0' or '(' .. digits(cut)
    local found = call('ZRANGEBYSCORE', key, from, digits(last.moment), 'WITHSCORES', 'LIMIT', 0, TOLD + 1)
    if #found > 2 * TOLD then return '' end
    local parts, rest = {}, log.amount
    for place = 1, #found, 2 do
      local entry = entry_of({found[place], found[place + 1]})
      parts[#parts + 1] = digits(entry.moment) .. ',' .. digits(entry.count)
      rest = rest - entry.count
    end
    local text = '~' .. table.concat(parts, ',')
    if rest > 0 then text = text .. ';' .. digits(newest.moment) .. ',' .. digits(rest) end
    return text
  end

  load()
  return log
end
