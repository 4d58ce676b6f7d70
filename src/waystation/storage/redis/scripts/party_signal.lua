-- ARGV: field, fence, origin id, payload, log_max, owner, incarnation
local record = get_record(ARGV[1])
if not is_held(record, ARGV[2], ARGV[6], ARGV[7]) then
  return false
end
if ARGV[3] <= record.signal then
  return 0
end
record.signal = ARGV[3]
put_record(ARGV[1], record)
local seq = append('11', ARGV[1], now_ms(), 0, 0, ARGV[4], ARGV[5])
return seq
