-- One command to one server, within what is left of a budget. A connection that failed, or was not read to its end, is closed.
local clock = require 'diana.clock'

local IDLE_MS, POOL_SIZE = 60000, 64

local redis = {}

local function packed(words)
  local parts = {'*' .. #words .. '\r\n'}
  for _, word in ipairs(words) do
    word = type(word) == 'number' and string.format('%.0f', word) or word
    parts[#parts + 1] = '$' .. #word .. '\r\n' .. word .. '\r\n'
  end
  return table.concat(parts)
end

-- A reply: a text, a number, a list, false for nil; an error is a table with `err`. Or nil and why there is none.
local function receive(socket)
  local line, failure = socket:receive()
  if not line then return nil, failure end
  local kind, rest = string.sub(line, 1, 1), string.sub(line, 2)
  if kind == '+' then return rest end
  if kind == '-' then return {err = rest} end
  if kind == ':' then return tonumber(rest) end
  if kind == '$' then
    local length = tonumber(rest)
    if length < 0 then return false end
    local text, why = socket:receive(length + 2)
    if not text then return nil, why end
    return string.sub(text, 1, -3)
  end
  if kind == '*' then
    local list = {}
    for place = 1, tonumber(rest) do
      local one, why = receive(socket)
      if one == nil then return nil, why end
      list[place] = one
    end
    return list
  end
  return nil, 'unexpected reply'
end

local function asked(socket, words)
  local sent, failure = socket:send(packed(words))
  if not sent then return nil, failure end
  return receive(socket)
end

local function connected(server, login, left_ms)
  local socket = ngx.socket.tcp()
  socket:settimeouts(left_ms, left_ms, left_ms)
  local options = {pool = server .. (login.username or '') .. '/' .. (login.db or 0), pool_size = POOL_SIZE}
  local done, failure
  if string.sub(server, 1, 1) == '/' then
    done, failure = socket:connect('unix:' .. server, options)
  else
    local host, port = string.match(server, '^%[?(.-)%]?:(%d+)$')
    if string.find(host, ':', 1, true) then host = '[' .. host .. ']' end
    done, failure = socket:connect(host, tonumber(port), options)
  end
  if not done then return nil, failure end
  if socket:getreusedtimes() > 0 then return socket, true end
  local greetings = {}
  if login.password then greetings[1] = login.username and {'AUTH', login.username, login.password} or {'AUTH', login.password} end
  if (login.db or 0) ~= 0 then greetings[#greetings + 1] = {'SELECT', login.db} end
  for _, words in ipairs(greetings) do
    local reply, why = asked(socket, words)
    if reply == nil or type(reply) == 'table' then
      socket:close()
      return nil, why or reply.err
    end
  end
  return socket, false
end

-- The replies to these commands, one after the other; or nil, why, and whether they may have been carried out.
function redis.ask(server, login, commands, deadline_us)
  local function left_ms() return math.max(1, math.ceil((deadline_us - clock.monotonic_us()) / 1000)) end
  local socket, reused = connected(server, login, left_ms())
  if not socket then return nil, reused, false end
  local left = left_ms()
  socket:settimeouts(left, left, left)
  local replies, request = {}, {}
  for place, words in ipairs(commands) do request[place] = packed(words) end
  local sent, failure = socket:send(table.concat(request))
  if not sent then
    socket:close()
    return nil, failure, true
  end
  for place = 1, #commands do
    local reply, why = receive(socket)
    if reply == nil then
      socket:close()
      return nil, why, true
    end
    replies[place] = reply
  end
  socket:setkeepalive(IDLE_MS, POOL_SIZE)
  return replies
end

return redis
