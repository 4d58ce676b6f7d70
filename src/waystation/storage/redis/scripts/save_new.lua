-- ARGV 3 sort key, 4 body, 5 now in s, 6 when it ends in s, 7 until when the key is kept in s,
-- 8 message id.
local text = redis.call('GET', key.body .. ARGV[3])
local held = text and decoded(text)
if held and tostring(held.version) ~= ARGV[8] then return 0 end
put_row(key, ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7])
return 1
