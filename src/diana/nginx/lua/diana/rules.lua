-- The rules that are in force in this worker, and which of them cover a request: `diana/core/policy.py`.
local address = require 'diana.address'
local json = require 'diana.json'
local path = require 'diana.path'

local MOST_REMEMBERED, LONGEST_REMEMBERED = 4096, 256
local FORMAT = 1

local rules = {}

local function node() return {own = {}, children = {}} end

local function tree_of(items)
  local root = node()
  for _, item in ipairs(items) do
    local at = root
    for _, segment in ipairs(item.url) do
      if segment == false then
        at.any = at.any or node()
        at = at.any
      else
        at.children[segment] = at.children[segment] or node()
        at = at.children[segment]
      end
    end
    at.own[#at.own + 1] = item
  end
  return root
end

-- Every item whose url is a prefix of the path is added to `found`.
local function add_covering(root, segments, found)
  local frontier = {root}
  for place = 0, #segments do
    local following = {}
    for _, at in ipairs(frontier) do
      for _, item in ipairs(at.own) do found[item] = true end
      local segment = segments[place + 1]
      if segment then
        if at.any then following[#following + 1] = at.any end
        if at.children[segment] then following[#following + 1] = at.children[segment] end
      end
    end
    if #following == 0 then return end
    frontier = following
  end
end

-- Every item whose url's own words are all among these.
local function add_within(at, words, found)
  for _, item in ipairs(at.own) do found[item] = true end
  if at.any then add_within(at.any, words, found) end
  for word, child in pairs(at.children) do
    if words[word] then add_within(child, words, found) end
  end
end

-- From what was published; an error if it is nothing that this script knows how to obey.
function rules.read(whole)
  local policy = json.decode(whole)
  if policy.error then error(policy.error, 0) end
  if policy.format ~= FORMAT then error('format ' .. tostring(policy.format) .. ' of the rules is unknown here; run diana export again', 0) end
  local told = policy.answer
  if not (told.status and told.headers and told.body and policy.phrases and policy.version) then error('the rules say nothing of the answer', 0) end
  policy.proxies = address.networks(policy.trusted_proxies)
  for place, rule in ipairs(policy.rules) do
    rule.rank = place
    for _, name in ipairs {'allow', 'only', 'deny'} do
      for _, roster in ipairs(rule[name] or {}) do
        for _, entry in ipairs(roster) do
          if entry.networks then entry.networks = address.networks(entry.networks) end
          if entry.keys then
            local set = {}
            for _, key in ipairs(entry.keys) do set[key] = true end
            entry.keys = set
          end
          if entry.actor and entry.actor.reads_path then roster.reads_path, rule.lists_read_path = true, true end
        end
      end
    end
  end
  policy.tree, policy.exempt_tree = tree_of(policy.rules), tree_of(policy.exempt)
  policy.remembered, policy.remembers = {}, 0
  return policy
end

local function matched(policy, whole, method)
  local readings, sent
  if #policy.mounts > 0 then
    readings, sent = path.readings_under(whole, policy.mounts)
  else
    readings = path.readings(whole)
    sent = readings and #readings
  end
  local covering, excepted = {}, {}
  if readings then
    for _, reading in ipairs(readings) do add_covering(policy.tree, reading, covering) end
    -- What is excepted is so in all that the client may have meant.
    local counts = {}
    for place = 1, sent do
      local items, blocks = {}, {}
      add_covering(policy.exempt_tree, readings[place], items)
      for item in pairs(items) do blocks[item.block] = true end
      for block in pairs(blocks) do counts[block] = (counts[block] or 0) + 1 end
    end
    for block, count in pairs(counts) do excepted[block] = count == sent end
  else
    add_within(policy.tree, path.words(whole), covering)
  end
  local found, reads_path = {}, false
  for rule in pairs(covering) do
    if not excepted[rule.block] and (not rule.methods or rule.methods[method]) then
      found[#found + 1] = rule
      reads_path = reads_path or rule.reads_path or rule.lists_read_path
    end
  end
  table.sort(found, function(one, other) return one.rank < other.rank end)
  local several = #policy.mounts > 0 or not readings or #readings > 1
  return {rules = found, readings = several and reads_path and (readings or {}) or nil}
end

-- The rules of a request in the order in which they are asked; and all readings of its path, if it has several and a rule looks at them.
function rules.match(policy, request)
  local method = string.upper(request.method)
  if method == 'HEAD' then method = 'GET' end
  if #request.path > LONGEST_REMEMBERED or #method > 32 then return matched(policy, request.path, method) end
  local name = method .. ' ' .. request.path
  local known = policy.remembered[name]
  if not known then
    if policy.remembers >= MOST_REMEMBERED then policy.remembered, policy.remembers = {}, 0 end
    known = matched(policy, request.path, method)
    policy.remembered[name], policy.remembers = known, policy.remembers + 1
  end
  return known
end

function rules.covers(rule, segments)
  if #rule.url > #segments then return false end
  for place, segment in ipairs(rule.url) do
    if segment ~= false and segment ~= segments[place] then return false end
  end
  return true
end

return rules
