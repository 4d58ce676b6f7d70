-- Tell the sweep of a user agent that Autopush's nodes wrote. Whether it was new to it.
local text = redis.call('GET', key.user)
local at = text and record_ends(key, text) or now
local first = redis.call('ZRANGE', key.ends, 0, 0, 'WITHSCORES')
if first[2] then at = math.min(at, in_ms(first[2])) end
if at == math.huge then return 0 end
if redis.call('ZSCORE', DUE, uaid) then return 0 end
return redis.call('ZADD', DUE, at, uaid)
