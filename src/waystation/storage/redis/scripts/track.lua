-- KEYS 1 counts, 2 ends, 3 the message's state, 4 what the sweep goes by; ARGV 1 id, 2 milestone, 3 whether it is terminal,
-- 4 its end in s, 5 until when the state is remembered in ms, 6… the terminal milestones.
local held = redis.call('GET', KEYS[3])
if held then
  for n = 6, #ARGV do
    if held == ARGV[n] then return 0 end
  end
  redis.call('HINCRBY', KEYS[1], held, -1)
  redis.call('ZREM', KEYS[2], ARGV[1] .. '#' .. held)
end
redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
if ARGV[3] == '0' then
  redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1] .. '#' .. ARGV[2])
  redis.call('ZREM', KEYS[4], ARGV[1])
else
  redis.call('ZADD', KEYS[4], ARGV[5], ARGV[1])
end
redis.call('SET', KEYS[3], ARGV[2], 'PXAT', ARGV[5])
return 1
