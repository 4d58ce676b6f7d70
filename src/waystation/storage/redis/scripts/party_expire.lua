-- ARGV: limit, log_max, linger. Those whose time is over leave with the reason that was recorded.
local now = now_ms()
local due = redis.call('ZRANGEBYSCORE', DETACHED, '-inf', now, 'LIMIT', 0, ARGV[1])
local reasons = { ['5'] = 18, ['6'] = 19, ['8'] = 20 }
for _, field in ipairs(due) do
  local record = get_record(field)
  if record then
    remove(field, reasons[record.cause] or 2, now, ARGV[2], ARGV[3])
  else
    redis.call('ZREM', DETACHED, field)
  end
end
local next_one = redis.call('ZRANGE', DETACHED, 0, 0, 'WITHSCORES')
return { #due, next_one[2] or '' }
