-- A server's lease is renewed, by this server's clock.
-- KEYS: the leases. ARGV: the node.
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], now[1] * 1000 + math.floor(now[2] / 1000))
return 1
