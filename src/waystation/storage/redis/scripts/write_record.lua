-- add | claim: ARGV 3 mode, 4 record, 5 its connected_at, 6 when it ends, 7 lifetime in s.
local connected_at = tonumber(ARGV[5])
local held = alive(key)
if held == nil then
  drop_all(key) -- nothing that a forerunner left behind is inherited
elseif ARGV[3] == 'add' then
  return 0
else
  local routed = type(held.node_id) == 'string'
  if routed and (tonumber(held.connected_at) or 0) >= connected_at then return 0 end
end
redis.call('SET', key.user, ARGV[4], 'EX', ARGV[7])
redis.call('SET', key.co, ARGV[5], 'EX', ARGV[7])
redis.call('ZADD', DUE, 'LT', ARGV[6], uaid)
return 1
