local known = alive(key) ~= nil
drop_all(key)
redis.call('ZREM', DUE, uaid)
return known and 1 or 0
