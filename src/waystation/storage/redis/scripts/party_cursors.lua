-- ARGV: owner, incarnation, then field, fence, cursor, and so on
for at = 3, #ARGV, 3 do
  local record = get_record(ARGV[at])
  if is_held(record, ARGV[at + 1], ARGV[1], ARGV[2]) and tonumber(record.cursor) < tonumber(ARGV[at + 2]) then
    record.cursor = ARGV[at + 2]
    put_record(ARGV[at], record)
  end
end
return 1
