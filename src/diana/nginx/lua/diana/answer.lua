-- What a client is told: `denial_response.py` and `ratelimit_headers.py` of `diana/responses`, word for word.
local preferred_kind = require 'diana.accept'
local format = string.format

local NEVER, SECOND, LARGEST = -1, 1000000, 1e15 - 1
local FORBIDDEN = 403
local PROBLEM_TYPES = 'https://iana.org/assignments/http-problem-types#'
local KINDS = {'json', 'text', 'html'}
local MEDIA = {text = 'text/plain; charset=utf-8', html = 'text/html; charset=utf-8'}
local WITHOUT_BODY = {[204] = true, [205] = true, [304] = true}
local PAGE = [[
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>%s</title>
<h1>%s</h1>
<p>%s</p>
</html>
]]

local answer = {}

local function seconds_up(micros) return math.ceil(micros / SECOND) end

local function wait_of(outcome) return outcome.retry == NEVER and math.huge or outcome.retry end

-- A rule that counts by the path may be asked once per reading of it: its tightest decision is told.
local function once_per_rule(verdict)
  local told, places = {}, {}
  for _, charge in ipairs(verdict.asked) do
    local place = places[charge.rule]
    if not place then
      told[#told + 1] = charge
      places[charge.rule] = #told
    else
      local one, other = verdict.outcomes[told[place]], verdict.outcomes[charge]
      local first, second = one.allowed and 0 or wait_of(one), other.allowed and 0 or wait_of(other)
      if second > first or (second == first and other.remaining < one.remaining) then told[place] = charge end
    end
  end
  return told
end

local function policy_line(charges)
  local items = {}
  for place, charge in ipairs(charges) do items[place] = charge.meter.policy end
  return table.concat(items, ', ')
end

-- Until there is more than what remains.
local function seconds_to_more(outcome, meter)
  local more = outcome.retry
  if more == 0 then
    more = outcome.reset - meter.pace[1] + (outcome.remaining + 1) * meter.pace[2]
    if more > outcome.reset or more <= 0 then more = outcome.reset end
  end
  return math.ceil((more - 0.5) / SECOND)
end

local function legacy(headers, charge, outcome)
  headers['X-RateLimit-Limit'] = format('%.0f', charge.meter.limit)
  headers['X-RateLimit-Remaining'] = format('%.0f', outcome.remaining)
  if outcome.retry ~= NEVER then headers['X-RateLimit-Reset'] = format('%.0f', seconds_up(outcome.reset)) end
end

-- Header lines of a request that passes.
function answer.fields(verdict, policy)
  local headers, charges = {}, once_per_rule(verdict)
  if #charges == 0 then return headers end
  if policy.answer.headers.ietf then
    local items = {}
    for place, charge in ipairs(charges) do
      local outcome = verdict.outcomes[charge]
      local more = math.max(0, seconds_to_more(outcome, charge.meter))
      items[place] = format('%s;r=%.0f;t=%.0f', charge.rule.quoted, math.min(outcome.remaining, LARGEST), more)
    end
    headers['RateLimit-Policy'] = policy_line(charges)
    headers['RateLimit'] = table.concat(items, ', ')
  end
  if policy.answer.headers.legacy then
    local least = charges[1]
    for _, charge in ipairs(charges) do
      if verdict.outcomes[charge].remaining < verdict.outcomes[least].remaining then least = charge end
    end
    legacy(headers, least, verdict.outcomes[least])
  end
  return headers
end

local function seconds_to_retry(denying, outcomes)
  local longest = 1
  for _, charge in ipairs(denying) do
    local retry = outcomes[charge].retry
    if retry == NEVER then return nil end
    longest = math.max(longest, retry)
  end
  return math.max(1, seconds_up(longest))
end

local UNITS = {{'second', 1, 120}, {'minute', 60, 7200}, {'hour', 3600, 172800}, {'day', 86400, math.huge}}

-- Rounded up to a unit that people count in.
local function in_words(seconds)
  for _, unit in ipairs(UNITS) do
    if seconds < unit[3] then
      local number = math.ceil(seconds / unit[2])
      return format('%.0f %s%s', number, unit[1], number == 1 and '' or 's')
    end
  end
end

local function detail_of(retry, listed)
  if listed then return 'Requests of this client are denied.' end
  if not retry then return 'This request cannot be let through.' end
  return format('Too many requests. Please try again in %s.', in_words(retry))
end

local function title_of(status, phrase, retry)
  if not retry and status >= 400 and phrase then return phrase end
  return 'Too Many Requests'
end

local function problem_of(status, phrase, denying, outcomes, retry, listed)
  if listed then
    return format('{"type": "about:blank", "title": "%s", "status": %d, "detail": "%s"}', phrase, status, detail_of(retry, listed))
  end
  local kind = denying[1] and outcomes[denying[1]].degraded and 'temporary-reduced-capacity' or 'quota-exceeded'
  local names = {}
  for place, charge in ipairs(denying) do names[place] = charge.rule.json_name end
  return format('{"type": "%s", "title": "%s", "status": %d, "detail": "%s", %s"violated-policies": [%s]}',
    retry and PROBLEM_TYPES .. kind or 'about:blank', title_of(status, phrase, retry), status, detail_of(retry),
    retry and format('"retry_after": %.0f, ', retry) or '', table.concat(names, ', '))
end

-- Status, header lines and body of a request that is denied.
function answer.denial(verdict, policy, accepted)
  local charges, outcomes, denying = once_per_rule(verdict), verdict.outcomes, {}
  for _, charge in ipairs(charges) do
    if not outcomes[charge].allowed then denying[#denying + 1] = charge end
  end
  local first, retry = verdict.denied_by, seconds_to_retry(denying, outcomes)
  local listed = verdict.listed
  local status = listed and FORBIDDEN or first.status or policy.answer.status
  local phrase = policy.phrases[tostring(status)]
  local own, kinds = first.body or policy.answer.body, {}
  for _, kind in ipairs(KINDS) do
    if own[kind] then kinds[#kinds + 1] = kind end
  end
  local kind = preferred_kind(accepted, #kinds > 0 and kinds or KINDS)
  local headers, body = {['Cache-Control'] = 'no-store'}, own[kind]
  if WITHOUT_BODY[status] then
    body = ''
  else
    headers['Content-Type'] = MEDIA[kind] or (body and 'application/json' or 'application/problem+json')
    if not body and kind == 'json' then
      body = problem_of(status, phrase, denying, outcomes, retry, listed)
    elseif not body and kind == 'text' then
      body = detail_of(retry, listed) .. '\n'
    elseif not body then
      local title = title_of(status, phrase, retry)
      body = format(PAGE, title, title, detail_of(retry, listed))
    end
    headers['Content-Length'] = #body
  end
  if listed then return status, headers, body end
  if policy.answer.headers['retry-after'] and retry then headers['Retry-After'] = format('%.0f', retry) end
  if policy.answer.headers.ietf then
    local items = {}
    for place, charge in ipairs(denying) do
      local one = seconds_to_retry({charge}, outcomes)
      items[place] = format('%s;r=%.0f', charge.rule.quoted, math.min(outcomes[charge].remaining, LARGEST))
      if one then items[place] = items[place] .. format(';t=%.0f', one) end
    end
    headers['RateLimit-Policy'] = policy_line(charges)
    headers['RateLimit'] = table.concat(items, ', ')
  end
  if policy.answer.headers.legacy and #denying > 0 then
    local worst = denying[1]
    for _, charge in ipairs(denying) do
      if wait_of(outcomes[charge]) > wait_of(outcomes[worst]) then worst = charge end
    end
    legacy(headers, worst, outcomes[worst])
  end
  return status, headers, body
end

return answer
