-- While a server is lost no request waits for it, in any worker; probes in the background find out when it is back.
local clock = require 'diana.clock'

local breaker = {}
local dict
local last_heard = {}

function breaker.open(name) dict = ngx.shared[name] end

function breaker.is_open(server) return dict:get('down ' .. server) ~= nil end

function breaker.is_any_open(servers)
  for _, server in ipairs(servers) do
    if breaker.is_open(server) then return true end
  end
  return false
end

function breaker.heard(server) last_heard[server] = clock.monotonic_us() end

-- A single late reply is not the server's end: only if nothing came from it since this was sent. `sent` nil: it has refused.
function breaker.failed(server, failure, sent)
  if failure == 'timeout' and sent and (last_heard[server] or 0) >= sent then return end
  if dict:add('down ' .. server, failure or '') then
    ngx.log(ngx.WARN, 'diana: store ', server, ' unreachable: ', failure, '; each rule does its when_down')
  end
end

function breaker.back(server)
  dict:delete('down ' .. server)
  ngx.log(ngx.NOTICE, 'diana: store ', server, ' is back')
end

return breaker
