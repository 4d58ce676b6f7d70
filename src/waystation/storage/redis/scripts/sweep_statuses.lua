-- KEYS 1 the index; ARGV 1 now in ms, 2 how many may go, 3 how a status key begins.
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, message_id in ipairs(due) do
  redis.call('UNLINK', ARGV[3] .. message_id)
  redis.call('ZREM', KEYS[1], message_id)
end
return #due
