-- KEYS 1 counts, 2 ends, 3 what the sweep goes by; ARGV 1 now in s, 2 how many, 3 how the key of a state begins, 4 the state
-- `expired`, 5 for how many ms it is remembered. How many were moved.
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, ARGV[2])
for n = 1, #due, 2 do
  local id, state = string.match(due[n], '^(.*)#([^#]*)$')
  redis.call('ZREM', KEYS[2], due[n])
  if id then
    local until_ms = string.format('%.0f', tonumber(due[n + 1]) * 1000 + tonumber(ARGV[5]))
    redis.call('HINCRBY', KEYS[1], state, -1)
    redis.call('HINCRBY', KEYS[1], ARGV[4], 1)
    redis.call('SET', ARGV[3] .. id, ARGV[4], 'PXAT', until_ms)
    redis.call('ZADD', KEYS[3], until_ms, id)
  end
end
return #due / 2
