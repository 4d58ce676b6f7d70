-- One message's status. KEYS 1 the status, 2 the index of the sweep; ARGV 1 message id, 2 sender,
-- 3 keep until in ms, then pairs of milestone and ms. The first time of a milestone counts.
redis.call('HSETNX', KEYS[1], 'sender', ARGV[2])
for n = 4, #ARGV, 2 do
  local held = redis.call('HGET', KEYS[1], ARGV[n])
  if not held or tonumber(held) > tonumber(ARGV[n + 1]) then
    redis.call('HSET', KEYS[1], ARGV[n], ARGV[n + 1])
  end
end
local until_ms = tonumber(redis.call('HGET', KEYS[1], 'keep_until_ms') or 0)
if tonumber(ARGV[3]) > until_ms then
  redis.call('HSET', KEYS[1], 'keep_until_ms', ARGV[3])
  redis.call('PEXPIREAT', KEYS[1], ARGV[3])
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
end
return 1
