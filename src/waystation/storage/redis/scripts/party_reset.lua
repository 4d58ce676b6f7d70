-- The store went back, or is empty: a new epoch from the position that was seen, and sessions that are missing are
-- put back without a word. ARGV: epoch and seq that were seen, new epoch, tick floor ms, then field and record …
local meta = redis.call('HMGET', META, 'epoch', 'seq')
local epoch, seq = meta[1], tonumber(meta[2] or '0')
if not epoch or (epoch == ARGV[1] and seq < tonumber(ARGV[2])) then
  epoch = ARGV[3]
  seq = tonumber(ARGV[2])
  redis.call('HSET', META, 'epoch', epoch, 'seq', whole(seq))
  local ms = tonumber(redis.call('HGET', META, 'hlc_ms') or '0')
  if tonumber(ARGV[4]) > ms then
    redis.call('HSET', META, 'hlc_ms', ARGV[4], 'hlc_n', '0')
  end
  redis.call('DEL', LOG)
  for at = 1, 5 do
    redis.call('PERSIST', KEYS[at])
  end
end
-- The life that the caller knows, and not behind it: nothing was lost, and whoever is missing has left.
local first = epoch == ARGV[1] and #ARGV + 1 or 5
for at = first, #ARGV, 2 do
  if redis.call('HSETNX', SESSIONS, ARGV[at], ARGV[at + 1]) == 1 then
    redis.call('HINCRBY', CLIENTS, client_of(ARGV[at]), 1)
  end
end
local told = seen_from('', '0')
return { epoch, whole(seq), told[2] }
