-- KEYS 1 the index; ARGV 1 now in ms, 2 how many may go, 3 how the keys that it leads to begin.
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, id in ipairs(due) do
  redis.call('UNLINK', ARGV[3] .. id)
  redis.call('ZREM', KEYS[1], id)
end
return #due
