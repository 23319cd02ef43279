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

local function state_of(counter)
  local written = dict:get(counter)
  if not written then return nil end
  local state = {}
  for number in string.gmatch(written, '%d+') do state[#state + 1] = tonumber(number) end
  return state
end

local function write(counter, state, reset_us)
  local digits = {}
  for place, number in ipairs(state) do digits[place] = string.format('%.0f', number) end
  dict:set(counter, table.concat(digits, ','), reset_us / 1000000 + GRACE_SECONDS)
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

-- All or nothing, as `diana/core/weigh.py`. `counts`: of each a counter, a limit (code and numbers) and a cost.
local function decide(counts, writes)
  local now, allowed = clock.now_us(), true
  local found, afters, states = {now = now}, {}, {}
  for place, one in ipairs(counts) do
    states[place] = state_of(one.counter)
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
      write(one.counter, afters[place], outcome.reset)
    end
  end
  return found
end

function zone.decide(counts) return locked(decide, counts, true) end

function zone.peek(counts) return locked(decide, counts, false) end

local function give_back(counts, at)
  local now = clock.now_us()
  for _, one in ipairs(counts) do
    local state = state_of(one.counter)
    if state then
      local after = refund[one.limit.code](state, one.limit.numbers, one.cost, at, now)
      local _, _, _, _, reset = kernels[one.limit.code](after, one.limit.numbers, 0, now)
      write(one.counter, after, reset)
    end
  end
end

-- What was charged at that time, as far as it still counts.
function zone.give_back(counts, at) locked(give_back, counts, at) end

return zone
