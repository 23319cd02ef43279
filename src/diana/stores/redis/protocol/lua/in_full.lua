local function cost_of(text)
  local cost = string.match(text, '^%d+$') and tonumber(text)
  if not cost or cost >= WHOLE then
    error('DIANA a cost is a whole number, not ' .. tostring(text))
  end
  return cost
end

local function state_of(key, limit)
  if limit.log then return open_log(key) end
  local text = call('GET', key)
  return text and decode('[' .. text .. ']') or nil, text
end

local function commit(key, limit, state, reset)
  if limit.log then return state.write(reset) end
  local text, life = text_and_life(key, limit, state, reset)
  call('SET', key, text, 'PX', life)
  return text
end

-- Says that a place of this counter may be given back in a moment. In the same slot, and under the same namespace.
local function held_key(key)
  return string.match(key, '^[%w_.-]*') .. ':held:{' .. key .. '}'
end

-- In which state a counter was found, for a deny cache: "-" if there was none.
local function told(limit, text, draft)
  return limit.log and draft.told() or text or '-'
end

-- What a counter has without the charge, and its state.
local function unpaid(key, limit)
  local before, text = state_of(key, limit)
  local outcome = {limit[1](before, limit[2], 0, now)}
  return outcome, told(limit, text, before)
end

-- One denies, so the others show what they have without the charge; and in which states they all were is told.
local function denied(word, first, charged, answer, befores, afters, texts)
  local count = #charged
  answer[1] = 0
  for place = 1, count do
    local key, limit, last = KEYS[first + place], charged[place], 5 * place - 4
    local text
    if answer[last + 1] == 1 then
      local outcome
      outcome, text = unpaid(key, limit)
      for number = 1, 5 do answer[last + number] = outcome[number + 1] end
    else
      text = told(limit, texts[place], befores[place])
      if word ~= 'look' then
        local reset = answer[last + 4]
        if afters[place] then
          text = commit(key, limit, afters[place], reset) or ''
        elseif call('PTTL', key) < over_up(reset, 1000) then
          live_for(key, reset)  -- a faster limit charged it last
        end
      end
      -- The denial may not last if a place was held a moment ago.
      if text ~= '' and call('GET', held_key(key)) then text = '' end
    end
    answer[5 * count + 1 + place] = #text > SHORT and '' or text
  end
  return answer
end

-- Give back, or renew, what was taken at some moment.
local function revise(word, first, charged, costs)
  local answer = {1}
  for place = 1, #charged do
    local limit = charged[place]
    local cost, made = string.match(costs[place], '^(%d+)@(%d+)$')
    if not cost or not limit[word] then error('DIANA no script can ' .. word .. ' this') end
    local log = open_log(KEYS[first + place])
    if log.newest or word == 'renew' then
      local after, reset, moment = limit[word](log, limit[2], cost_of(cost), tonumber(made), now)
      after.write(reset)
      answer[#answer + 1] = moment
    end
  end
  return answer
end

return function(word, first, count, from, stride)
  local charged, costs = {}, {}
  for place = 1, count do
    local text = ARGV[from + stride * place]
    charged[place], costs[place] = limits[text] or learn(text), stride == 1 and '1' or ARGV[from + stride * place + 1]
  end
  if word == 'refund' or word == 'renew' then return revise(word, first, charged, costs) end
  local answer, befores, afters, texts, allowed = {1, 0, 0, 0, 0, 0}, {}, {}, {}, true
  for place = 1, count do
    local key, limit, cost = KEYS[first + place], charged[place], cost_of(costs[place])
    local kernel, params = limit[1], limit[2]
    local before, text = state_of(key, limit)
    if word == 'fill' then
      local _, _, room = kernel(before, params, 0, now)
      cost = math.min(cost, room)
      if limit.log then before = open_log(key) end
    end
    local after, passed, remaining, retry, reset, delay = kernel(before, params, cost, now)
    if passed == 0 then allowed = false elseif cost == 0 then after = false end
    local last = 5 * place - 4
    answer[last + 1], answer[last + 2], answer[last + 3] = passed, remaining, retry
    answer[last + 4], answer[last + 5] = reset, delay
    befores[place], afters[place], texts[place] = before, after, text
  end
  if not allowed then return denied(word, first, charged, answer, befores, afters, texts) end
  for place = 1, count do
    if word == 'look' then
      local _, text = unpaid(KEYS[first + place], charged[place])
      answer[5 * count + 1 + place] = #text > SHORT and '' or text
    else
      if afters[place] then commit(KEYS[first + place], charged[place], afters[place], answer[5 * place]) end
      if word == 'hold' then call('SET', held_key(KEYS[first + place]), '1', 'PX', HELD) end
    end
  end
  return answer
end
