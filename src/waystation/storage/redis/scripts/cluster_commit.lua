-- The next map, if the one in force has the epoch before it.
-- KEYS: the map. ARGV: the new epoch, the new map.
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
if epoch ~= tonumber(ARGV[1]) - 1 then
    return 0
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'map', ARGV[2])
return 1
