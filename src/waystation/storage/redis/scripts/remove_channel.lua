-- ARGV 3 channel. Every copy of it goes, and what waits for it.
if alive(key) == nil then return 0 end
if redis.call('LREM', key.channels, 0, ARGV[3]) == 0 then return 0 end
redis.call('HDEL', key.updates, ARGV[3], ARGV[3] .. '/time')
local rows = {}
for _, sort_key in ipairs(redis.call('ZRANGE', key.msgs, 0, -1)) do
  if channel_of(sort_key) == ARGV[3] then rows[#rows + 1] = sort_key end
end
drop_rows(key, rows)
return 1
