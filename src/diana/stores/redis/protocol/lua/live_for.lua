-- A key that is there lives for so long from now at least: never shorter than another limit has asked for.
local function live_for(key, reset)
  local life = over_up(reset, 1000) + GRACE
  if call('PTTL', key) < life then call('PEXPIRE', key, format('%.0f', life)) end
end
