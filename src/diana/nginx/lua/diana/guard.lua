-- The three places where nginx calls: when it starts, when a worker starts, and for every request, before all other filters.
local answer = require 'diana.answer'
local breaker = require 'diana.breaker'
local charging = require 'diana.charging'
local counted = require 'diana.counted'
local decide = require 'diana.decide'
local dropping = require 'diana.dropping'
local following = require 'diana.following'
local json = require 'diana.json'
local request = require 'diana.request'
local rules = require 'diana.rules'
local settling = require 'diana.settling'
local store = require 'diana.store'
local zone = require 'diana.zone'

local MOST_WAITING, CLIENT_CLOSED = 1024, 499
local COUNTERS, STATE, DEBTS = 'diana_counters', 'diana_state', 'diana_debts'

local guard = {}
local folder, settings
local waiting = 0

local function contents(name)
  local file = assert(io.open(folder .. '/' .. name, 'rb'))
  local whole = file:read('*a')
  file:close()
  return whole
end

-- In the master, which may read what workers may not.
function guard.start(where)
  folder = where
  settings = json.decode(contents('settings.json'))
  following.use(rules.read(contents('rules.json')))
end

function guard.start_worker()
  math.randomseed(ngx.now() * 1000 + ngx.worker.pid() * 7919)
  zone.open(COUNTERS, folder .. '/lock')
  breaker.open(STATE)
  dropping.open(STATE)
  settling.open(DEBTS)
  if settings.store then
    store.open(settings.store)
    following.start(settings.store)
  end
end

local function this_request()
  return request.new(ngx.req.get_method(), ngx.var.request_uri, ngx.req.get_headers(0), ngx.var.remote_addr)
end

local function put(headers)
  for name, value in pairs(headers) do ngx.header[name] = value end
end

local function deny(verdict, policy, asked)
  local status, headers, body = answer.denial(verdict, policy, asked:lines('accept'))
  ngx.status = status
  put(headers)
  if body ~= '' then ngx.print(body) end
  return ngx.exit(status)
end

-- There is a place in the queue, but none to wait in: as if it were denied until its delay is over.
local function deny_instead(verdict)
  for _, charge in ipairs(verdict.asked) do
    local outcome = verdict.outcomes[charge]
    if outcome.delay == verdict.delay then
      outcome.allowed, outcome.retry, outcome.delay = false, outcome.delay, 0
      verdict.denied_by = charge.rule
      return verdict
    end
  end
end

-- Wait out the delay. A client that leaves meanwhile gives its place back, if nginx watches it (lua_check_client_abort).
local function wait(verdict)
  local waits = true
  waiting = waiting + 1
  ngx.on_abort(function()
    if waits then
      waiting = waiting - 1
      decide.give_back(verdict)
    end
    ngx.exit(CLIENT_CLOSED)
  end)
  ngx.sleep(math.ceil(verdict.delay / 1000) / 1000)
  waits, waiting = false, waiting - 1
end

function guard.access()
  if counted.was_before() then return end
  local policy = following.policy()
  local asked = this_request()
  local fine, verdict = pcall(decide.verdict, policy, asked)
  if not fine then
    ngx.log(ngx.ERR, 'diana: a request was let pass, because deciding failed: ', verdict)
    return
  end
  if not verdict.allowed then return deny(verdict, policy, asked) end
  if verdict.delay > 0 then
    if waiting >= MOST_WAITING then
      decide.give_back(verdict)
      return deny(deny_instead(verdict), policy, asked)
    end
    wait(verdict)
  end
  put(answer.fields(verdict, policy))
end

-- What would be charged: a rule and a counter a line. For tests and for looking into things; nothing is counted.
function guard.explain(asked)
  local lines = {}
  local charges, refusing = charging.charges(following.policy(), asked or this_request())
  for place, charge in ipairs(charges) do lines[place] = charge.rule.name .. '\t' .. (charge.instead or charge.counter) end
  if refusing then lines[#lines + 1] = refusing.rule.name .. '\trefused' end
  return lines
end

return guard
