local SECOND, NEVER, UNKNOWN = 1000000, -1, -2
local fmod, format, call, decode = math.fmod, string.format, redis.call, cjson.decode

-- Whole division of what is not negative.
local function over(number, divisor)
  return (number - fmod(number, divisor)) / divisor
end

local function over_up(number, divisor)
  local rest = fmod(number, divisor)
  if rest == 0 then return number / divisor end
  return (number - rest) / divisor + 1
end

-- number * factor / divisor, rounded up, though the product may be far beyond 2^53: bit by bit.
local function times_over_up(number, factor, divisor)
  local whole, rest = over(number, divisor) * factor, math.fmod(number, divisor)
  local bits = {}
  while factor > 0 do
    bits[#bits + 1] = math.fmod(factor, 2)
    factor = over(factor, 2)
  end
  local quotient, remainder = 0, 0
  for place = #bits, 1, -1 do
    quotient, remainder = quotient * 2, remainder * 2
    if remainder >= divisor then quotient, remainder = quotient + 1, remainder - divisor end
    if bits[place] == 1 then
      remainder = remainder + rest
      if remainder >= divisor then quotient, remainder = quotient + 1, remainder - divisor end
    end
  end
  return whole + quotient + (remainder > 0 and 1 or 0)
end
