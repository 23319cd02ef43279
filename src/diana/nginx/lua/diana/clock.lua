-- The time in whole microseconds. nginx's own is of milliseconds, and stands still while a request is worked on.
local ffi = require 'ffi'

ffi.cdef [[
  typedef struct { long seconds; long nanoseconds; } diana_timespec;
  int clock_gettime(int clock, diana_timespec *now);
]]
local WALL, MONOTONIC = 0, 1
local spec = ffi.new 'diana_timespec'

local clock = {}

local function read(which)
  ffi.C.clock_gettime(which, spec)
  return tonumber(spec.seconds) * 1000000 + math.floor(tonumber(spec.nanoseconds) / 1000)
end

function clock.now_us() return read(WALL) end

function clock.monotonic_us() return read(MONOTONIC) end

return clock
