-- ARGV: node, incarnation. Its node is lost: every session of that life waits for one TTL.
local now = now_ms()
local all = redis.call('HGETALL', SESSIONS)
local count, earliest = 0, ''
for at = 1, #all, 2 do
  local record = unpack_record(all[at + 1])
  if record.active == '1' and record.owner == ARGV[1] and record.incarnation == ARGV[2] then
    record.active, record.cause = '0', '8'
    record.detached_ms, record.deadline = whole(now), whole(now + tonumber(record.ttl))
    put_record(all[at], record)
    redis.call('ZADD', DETACHED, record.deadline, all[at])
    count = count + 1
  end
end
local next_one = redis.call('ZRANGE', DETACHED, 0, 0, 'WITHSCORES')
return { count, next_one[2] or '' }
