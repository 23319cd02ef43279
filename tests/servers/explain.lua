-- Requests, one a line, each word in hex and set apart by blanks: method, uri, peer, and names and values of headers. Of each the rules and counters.
local guard = require 'diana.guard'
local request = require 'diana.request'

local function from_hex(digits)
  if digits == '-' then return '' end
  return (string.gsub(digits, '..', function(two) return string.char(tonumber(two, 16)) end))
end

ngx.req.read_body()
for line in string.gmatch(ngx.req.get_body_data(), '[^\n]+') do
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = from_hex(word) end
  local headers = {}
  for place = 4, #words, 2 do
    local name = string.lower(words[place])
    local before = headers[name]
    if before == nil then headers[name] = words[place + 1]
    elseif type(before) == 'table' then before[#before + 1] = words[place + 1]
    else headers[name] = {before, words[place + 1]} end
  end
  local fine, said = pcall(guard.explain, request.new(words[1], words[2], headers, words[3]))
  if not fine then said = {said} end
  -- No text has this byte.
  ngx.print((string.gsub(table.concat(said, '\255'), '.', function(one) return string.format('%02x', string.byte(one)) end)), '\n')
end
