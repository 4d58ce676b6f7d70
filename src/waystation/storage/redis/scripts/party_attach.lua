-- ARGV: field, owner, incarnation, hash or '', trusted, token required, grace, new hash, ttl or '', flags,
--       token_exp, known epoch, known seq
local field = ARGV[1]
local record = get_record(field)
if not record then
  return { 'missing' }
end
local now = now_ms()
if ARGV[5] ~= '1' then
  if ARGV[4] == '' then
    if record.active == '1' then
      return { 'rejected', 3 }
    elseif ARGV[6] == '1' then
      return { 'rejected', 70 }
    end
  elseif ARGV[4] ~= record.hash and not (record.previous ~= '' and ARGV[4] == record.previous
    and now < tonumber(record.previous_until)) then
    return { 'rejected', 70 }
  end
end
local was_active, owner, incarnation = record.active, record.owner, record.incarnation
local gap = 0
if record.detached_ms ~= '0' then
  gap = math.max(0, now - tonumber(record.detached_ms))
end
record.active, record.owner, record.incarnation = '1', ARGV[2], ARGV[3]
record.fence = whole(tonumber(record.fence) + 1)
-- What the client has shown it certainly has; the newest token may never have reached it.
record.previous = ARGV[5] ~= '1' and ARGV[4] ~= '' and ARGV[4] or record.hash
record.previous_until = whole(now + tonumber(ARGV[7]))
record.hash = ARGV[8]
if ARGV[9] ~= '' then
  record.ttl = ARGV[9]
end
record.flags = whole(merged_flags(tonumber(record.flags), tonumber(ARGV[10])))
record.token_exp = ARGV[11]
record.detached_ms, record.deadline, record.cause = '0', '0', '0'
local text = put_record(field, record)
redis.call('ZREM', DETACHED, field)
redis.call('SPUBLISH', BELL, 'n4:' .. field .. ':' .. record.fence .. ':' .. ARGV[2])
local told = seen_from(ARGV[12], ARGV[13])
local meta = redis.call('HMGET', META, 'seq', 'epoch')
return { 'attached', text, was_active, owner, incarnation, gap, meta[1], meta[2], told[1], told[2] }
