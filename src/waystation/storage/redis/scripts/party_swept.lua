-- A party was swept. KEYS: the index of its shard. ARGV: party, the score that was seen there, the new score or ''.
-- Only if nobody has written it since: whoever expects a session to wait knows more than we saw.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then
  return 0
end
if ARGV[3] == '' then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
end
return 1
