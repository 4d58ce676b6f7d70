-- ARGV 3 the record as it was read, 4 what takes its place; the lifetime stays as it is.
if redis.call('GET', key.user) ~= ARGV[3] then return 0 end
redis.call('SET', key.user, ARGV[4], 'KEEPTTL')
return 1
