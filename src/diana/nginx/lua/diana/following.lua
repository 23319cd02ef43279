-- Rules as they were published last, and which servers are well: looked at in the background, once a second in every worker.
local breaker = require 'diana.breaker'
local clock = require 'diana.clock'
local rules = require 'diana.rules'
local settling = require 'diana.settling'
local store = require 'diana.store'
local topology = require 'diana.topology'

local PAUSE_SECONDS, PROBE_SECONDS, TOPOLOGY_TURNS = 1, 0.25, 10

local following = {}
local current, version, problem
local turns = 0

function following.policy() return current end

function following.use(policy) current = policy end

local function complain(said)
  if said ~= problem then ngx.log(ngx.ERR, 'diana: the last good rules stay: ', said) end
  problem = said
end

local function look(settings)
  local replies = store.background(settings.rules_key, {{'HGET', settings.rules_key, 'version'}})
  local published = replies and replies[1]
  if type(published) == 'string' and published ~= version then
    replies = store.background(settings.rules_key, {{'HMGET', settings.rules_key, 'version', 'rules'}})
    local found = replies and replies[1]
    if type(found) == 'table' and found[1] and found[2] then
      version = found[1]
      local fine, policy = pcall(rules.read, found[2])
      if fine then
        current, problem = policy, nil
        ngx.log(ngx.NOTICE, 'diana: rules of version ', policy.version)
      else
        complain(policy)
      end
    end
  end
  replies = store.background(settings.sha_key, {{'GET', settings.sha_key}})
  local sha = replies and replies[1]
  if type(sha) == 'string' and #sha == 40 then store.use_sha(sha) end
end

local function turn(premature, settings)
  if premature then return end
  turns = turns + 1
  if turns % TOPOLOGY_TURNS == 1 or breaker.is_any_open(topology.servers()) then
    topology.refresh(function() return clock.monotonic_us() + 1000000 end)
  end
  local fine, failure = pcall(look, settings)
  if not fine then ngx.log(ngx.ERR, 'diana: looking for rules failed: ', failure) end
  ngx.timer.at(PAUSE_SECONDS, turn, settings)
end

local function probe(premature)
  if premature then return end
  for _, server in ipairs(topology.servers()) do
    if breaker.is_open(server) and store.probe(server) and breaker.is_open(server) then breaker.back(server) end
  end
  settling.settle()
  ngx.timer.at(PROBE_SECONDS, probe)
end

function following.start(settings)
  ngx.timer.at(0, turn, settings)
  ngx.timer.at(PROBE_SECONDS, probe)
end

return following
