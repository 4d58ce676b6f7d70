-- ARGV 3 channel, 4 how many there may be. Autopush's nodes may have left a channel twice.
if alive(key) == nil then return 0 end
local seen, count = {}, 0
for _, channel in ipairs(redis.call('LRANGE', key.channels, 0, -1)) do
  if channel == ARGV[3] then return 1 end
  if not seen[channel] then
    seen[channel] = true
    count = count + 1
  end
end
if count >= tonumber(ARGV[4]) then return 0 end
redis.call('RPUSH', key.channels, ARGV[3])
return 1
