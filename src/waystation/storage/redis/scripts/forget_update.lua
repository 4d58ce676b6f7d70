-- ARGV 3 channel, 4 version.
if alive(key) == nil then return 0 end
if redis.call('HGET', key.updates, ARGV[3]) ~= ARGV[4] then return 0 end
return redis.call('HDEL', key.updates, ARGV[3])
