-- A job removes a user agent. ARGV 3 the beginning of the SHA-1 of its record as it was seen, or
-- nothing: then what was left behind goes, if there is still no record. Whether it was so.
local text = redis.call('GET', key.user)
if ARGV[3] == '' then
  if text and alive(key) then return 0 end
elseif not text or string.sub(redis.sha1hex(text), 1, #ARGV[3]) ~= ARGV[3] then
  return 0
end
drop_all(key)
redis.call('ZREM', DUE, uaid)
return 1
