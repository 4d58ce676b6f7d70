-- ARGV: field, fence, cursor, cause, owner, incarnation
local record = get_record(ARGV[1])
if not is_held(record, ARGV[2], ARGV[5], ARGV[6]) then
  return 0
end
local now = now_ms()
record.active, record.cause = '0', ARGV[4]
record.cursor = whole(math.max(tonumber(record.cursor), tonumber(ARGV[3])))
record.detached_ms, record.deadline = whole(now), whole(now + tonumber(record.ttl))
put_record(ARGV[1], record)
redis.call('ZADD', DETACHED, record.deadline, ARGV[1])
return 1
