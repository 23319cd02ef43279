local KEYS, ARGV, try = KEYS, ARGV, redis.pcall
local now, now_text = tonumber(ARGV[1]), nil
if now then
  now_text = format('%.0f', now)
elseif ARGV[1] == '' then
  local time = call('TIME')
  now, now_text = time[1] * 1000000 + time[2], time[1] .. format('%06d', time[2])
else
  return redis.error_reply('DIANA a time is a whole number, or empty')
end
local answers, said, at, first
if ARGV[3] and string.byte(ARGV[3]) == 35 then
  answers, said, at, first = {now, ARGV[3]}, 2, 4, 0
else
  answers, said, at, first = {now}, 1, 3, 0
end
local deadline = tonumber(ARGV[2])
if deadline and now > deadline then
  answers[said + 1] = TOO_LATE
  return answers
end

-- By its text: its kernel and its numbers; of one that keeps a log also `log` and how it is refunded.
local limits = {}
local function learn(text)
  local limit = decode(text)
  local kernel, log, refund, renew = kernel_of(limit[1])
  if not kernel then error('DIANA there is no algorithm ' .. tostring(limit[1])) end
  limit[1] = kernel
  if log then limit.log, limit.refund, limit.renew = log, refund, renew end
  limits[text] = limit
  return limit
end

local function learn_once(text) return limits[text] or learn(text) end

-- What a charge comes to where no log is kept. The decoder of JSON reads numbers exactly, and in C.
local function weigh(key, text, cost)
  local limit = limits[text] or learn(text)
  if limit.log then return end
  local state = call('GET', key)
  return limit[1](state and decode('[' .. state .. ']') or nil, limit[2], cost, now)
end

-- A state as it is written, and for how many ms: as long as the slowest limit that counts on it needs, and never shorter than another
-- limit has asked for. `%d` is quicker than `%.0f`, but on some servers narrower.
local function text_and_life(key, limit, state, reset)
  if limit[3] then
    local _, _, _, _, slowest = limit[1](state, limit[3], 0, now)
    if slowest > reset then reset = slowest end
  end
  local count, life, left = #state, over_up(reset, 1000) + GRACE, call('PTTL', key)
  if left > life then life = left end
  life = format(life < INT and '%d' or '%.0f', life)
  if count == 3 and state[2] == now then
    local one, three = state[1], state[3]
    if one >= 0 and one < INT and three >= 0 and three < INT then
      return format('%d,%s,%d', one, now_text, three), life
    end
  end
  local digits = {}
  for place = 1, count do
    local number = state[place]
    if number ~= number or number < 0 or number >= WHOLE then error('DIANA a state out of range') end
    digits[place] = format('%.0f', number)
  end
  return table.concat(digits, ','), life
end

local last, decide_in_full, of_one_place = #ARGV, nil, nil
while at <= last do
  -- The limit of each place is at `from + stride * place`, and its cost behind it, if it is not 1.
  local word, count, from, stride = ARGV[at], nil, at, 1
  if string.byte(word) == 91 then
    word, count, from = 'take', 1, at - 1
  else
    count = tonumber(word)
    if count then
      word = 'take'
    elseif word == 'take' or word == 'hold' or word == 'look' or word == 'fill' or word == 'refund' or word == 'renew' then
      count, stride = tonumber(ARGV[at + 1]), 2
    end
    if not count or count < 0 then
      return redis.error_reply('DIANA a request is take, hold, look, fill, refund or renew and how many counters, not ' .. tostring(word))
    end
  end
  local answer, afters
  if word == 'take' then
    for place = 1, count do
      local cost = 1
      if stride == 2 then cost = tonumber(string.match(ARGV[from + 2 * place + 1] or '', '^[1-9]%d*$')) end
      local fine, after, passed, remaining, retry, reset, delay
      if cost and cost < WHOLE then
        fine, after, passed, remaining, retry, reset, delay = pcall(weigh, KEYS[first + place], ARGV[from + stride * place], cost)
      end
      if not fine or not after or passed == 0 then
        answer = nil
        break
      elseif place == 1 then
        answer, afters = {1, 1, remaining, retry, reset, delay}, {after}
      else
        local before = 5 * place - 4
        answer[before + 1], answer[before + 2], answer[before + 3] = 1, remaining, retry
        answer[before + 4], answer[before + 5], afters[place] = reset, delay, after
      end
    end
  end
  local done
  if not answer and count == 1 and (word == 'take' or word == 'refund') then
    local known, limit = pcall(learn_once, ARGV[from + stride])
    if known and limit.renew then
      of_one_place = of_one_place or (function()
-- OF ONE PLACE
      end)()
      local fine, found = pcall(of_one_place, word, KEYS[first + 1], limit[2], stride == 2 and ARGV[from + 3] or '1')
      if fine then done = found end
    end
  end
  if answer then
    for place = 1, count do
      local key = KEYS[first + place]
      local fine, text, life = pcall(text_and_life, key, limits[ARGV[from + stride * place]], afters[place], answer[5 * place])
      local failure = text
      if fine then failure = try('SET', key, text, 'PX', life).err end
      if failure then
        answer = failure
        break
      end
    end
  elseif done then
    answer = done
  else
    decide_in_full = decide_in_full or (function()
-- IN FULL
    end)()
    local fine
    fine, answer = pcall(decide_in_full, word, first, count, from, stride)
    if not fine then answer = type(answer) == 'table' and answer.err or tostring(answer) end
  end
  said = said + 1
  answers[said] = answer
  at, first = from + stride * (count + 1), first + count
end
return answers
