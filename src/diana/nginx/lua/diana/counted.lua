-- Which requests were counted lately in this worker: nginx may send one on to another location (error_page, try_files), where it is
-- not to be counted again; but one that came by a location without limits is counted there.
local MOST = 10000

local counted = {}
local now, before, count = {}, {}, 0

local function name_of_request() return ngx.var.connection .. ' ' .. ngx.var.connection_requests end

-- Whether it was; from now on it is.
function counted.was_before()
  local name = name_of_request()
  if ngx.req.is_internal() and (now[name] or before[name]) then return true end
  if count >= MOST then now, before, count = {}, now, 0 end
  now[name], count = true, count + 1
  return false
end

return counted
