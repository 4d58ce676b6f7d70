-- ARGV: field, fence or 0, code, log_max, linger, owner, incarnation
local record = get_record(ARGV[1])
if not record or (ARGV[2] ~= '0' and not is_held(record, ARGV[2], ARGV[6], ARGV[7])) then
  return false
end
local seq, size, count = remove(ARGV[1], ARGV[3], now_ms(), ARGV[4], ARGV[5])
return { seq, size, count }
