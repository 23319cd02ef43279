-- Counting here, for all workers of this nginx together: rules of scope local, and the others while the store is lost.
--
-- Single operations of a shared dict are atomic, but a decision reads, computes and writes; so workers exclude each other by a lock on
-- a file. The kernel takes it from a worker that dies, and keeps it for one that is held up: neither costs or adds a count. Nothing in
-- here yields while it is held.
local ffi = require 'ffi'
local clock = require 'diana.clock'
local kernels = require 'diana.kernels'
local refund = require 'diana.refund'

ffi.cdef [[
  int open(const char *path, int flags, ...);
  int flock(int fd, int operation);
]]
local READ_ONLY, CLOSE_ON_EXEC, EXCLUSIVE, UNLOCK = 0, 0x80000, 2, 8
local INTERRUPTED = 4
local GRACE_SECONDS = 1

local zone = {}
local dict, fd

function zone.open(name, lock_file)
  dict = ngx.shared[name] or error('there is no lua_shared_dict ' .. name)
  fd = ffi.C.open(lock_file, READ_ONLY + CLOSE_ON_EXEC)
  if fd < 0 then error('worker processes cannot read ' .. lock_file) end
end

-- And the second in which it ends: the flags of its entry.
local function state_of(counter)
  local written, ends = dict:get(counter)
  if not written then return nil, 0 end
  local state = {}
  for number in string.gmatch(written, '%d+') do state[#state + 1] = tonumber(number) end
  return state, ends or 0
end

-- A counter lives as long as the slowest limit needs that counts on it, and never shorter than another limit has asked for.
local function write(counter, limit, state, reset_us, now, ends)
  if limit.slowest then
    local _, _, _, _, slowest = kernels[limit.code](state, limit.slowest, 0, now)
    reset_us = math.max(reset_us, slowest)
  end
  local digits = {}
  for place, number in ipairs(state) do digits[place] = string.format('%.0f', number) end
  ends = math.max(math.ceil((now + reset_us) / 1000000), reset_us > 0 and ends or 0)
  dict:set(counter, table.concat(digits, ','), ends - now / 1000000 + GRACE_SECONDS, ends)
end

local function locked(work, ...)
  while ffi.C.flock(fd, EXCLUSIVE) ~= 0 do
    if ffi.errno() ~= INTERRUPTED then error('the lock cannot be taken', 0) end
  end
  local fine, found = pcall(work, ...)
  ffi.C.flock(fd, UNLOCK)
  if not fine then error(found, 0) end
  return found
end

local function outcome_of(passed, remaining, retry, reset, delay)
  return {allowed = passed == 1, remaining = remaining, retry = retry, reset = reset, delay = delay}
end

-- All or nothing, as `diana/core/charge.py`. `counts`: of each a counter, a limit (code and numbers) and a cost.
local function decide(counts, writes)
  local now, allowed = clock.now_us(), true
  local found, afters, states, ends = {now = now}, {}, {}, {}
  for place, one in ipairs(counts) do
    states[place], ends[place] = state_of(one.counter)
    local after, passed, remaining, retry, reset, delay = kernels[one.limit.code](states[place], one.limit.numbers, one.cost, now)
    found[place] = outcome_of(passed, remaining, retry, reset, delay)
    afters[place] = after
    if passed == 0 then allowed = false end
  end
  for place, one in ipairs(counts) do
    local outcome = found[place]
    if not allowed and outcome.allowed then
      local _, passed, remaining, retry, reset, delay = kernels[one.limit.code](states[place], one.limit.numbers, 0, now)
      found[place] = outcome_of(passed, remaining, retry, reset, delay)
    elseif writes and one.cost > 0 and afters[place] then
      write(one.counter, one.limit, afters[place], outcome.reset, now, ends[place])
    elseif writes and states[place] and ends[place] * 1000000 < now + outcome.reset then
      write(one.counter, one.limit, states[place], outcome.reset, now, ends[place])
    end
  end
  return found
end

function zone.decide(counts) return locked(decide, counts, true) end

function zone.peek(counts) return locked(decide, counts, false) end

local function give_back(counts, outcomes)
  local now = clock.now_us()
  for place, one in ipairs(counts) do
    local at = refund.moment_of(one.limit, outcomes[place])
    local state, ends = state_of(one.counter)
    if state then
      local after = refund[one.limit.code](state, one.limit.numbers, one.cost, at, now)
      local _, _, _, _, reset = kernels[one.limit.code](after, one.limit.numbers, 0, now)
      write(one.counter, one.limit, after, reset, now, ends)
    end
  end
end

-- What was charged with these outcomes, as far as it still counts.
function zone.give_back(counts, outcomes) locked(give_back, counts, outcomes) end

return zone
