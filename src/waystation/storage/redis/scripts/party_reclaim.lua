-- ARGV: node, incarnation, then field and fence of each session. Returns those that have moved on.
local moved = {}
for at = 3, #ARGV, 2 do
  local record = get_record(ARGV[at])
  if not record or record.fence ~= ARGV[at + 1] or record.owner ~= ARGV[1] or record.incarnation ~= ARGV[2] then
    moved[#moved + 1] = ARGV[at]
  elseif record.active == '0' and record.cause == '8' then
    record.active, record.cause, record.detached_ms, record.deadline = '1', '0', '0', '0'
    put_record(ARGV[at], record)
    redis.call('ZREM', DETACHED, ARGV[at])
  end
end
return moved
