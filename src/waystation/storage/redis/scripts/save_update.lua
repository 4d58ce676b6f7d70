-- ARGV 3 channel, 4 version, 5 version and time or nothing; versions are compared as decimal text,
-- so they may be of any size. Answer: whether it is saved, and what was there: version, and time.
if alive(key) == nil then return {0, false, false} end
if not redis.call('LPOS', key.channels, ARGV[3]) then return {0, false, false} end
local held = redis.call('HGET', key.updates, ARGV[3])
local times = redis.call('HGET', key.updates, ARGV[3] .. '/time')
if held and not decimal_before(held, ARGV[4]) then return {0, held, times} end
redis.call('HSET', key.updates, ARGV[3], ARGV[4])
if ARGV[5] ~= '' then redis.call('HSET', key.updates, ARGV[3] .. '/time', ARGV[5])
else redis.call('HDEL', key.updates, ARGV[3] .. '/time') end
return {1, held, times}
