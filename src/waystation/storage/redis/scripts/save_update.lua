-- ARGV 3 channel, 4 version; versions are compared as decimal text, so they may be of any size.
if alive(key) == nil then return 0 end
if not redis.call('LPOS', key.channels, ARGV[3]) then return 0 end
local held = redis.call('HGET', key.updates, ARGV[3])
if held and not decimal_before(held, ARGV[4]) then return 0 end
redis.call('HSET', key.updates, ARGV[3], ARGV[4])
return 1
