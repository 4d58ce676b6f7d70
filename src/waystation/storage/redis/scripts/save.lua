-- ARGV 3 sort key, 4 body, 5 now in s, 6 when it ends in s, 7 until when the key is kept in s.
-- Of a topic, the body that it replaces.
local held = string.sub(ARGV[3], 1, 3) == '01:' and redis.call('GET', key.body .. ARGV[3])
put_row(key, ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7])
return held or 1
