-- ARGV 3 channel, 4 version.
if alive(key) == nil then return 0 end
if redis.call('HGET', key.updates, ARGV[3]) ~= ARGV[4] then return 0 end
redis.call('HDEL', key.updates, ARGV[3], ARGV[3] .. '/time')
return 1
