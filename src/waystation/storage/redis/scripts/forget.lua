-- ARGV 3… pairs of sort key and message id; a row goes only if it still holds that message.
local gone = {}
for n = 3, #ARGV, 2 do
  local text = redis.call('GET', key.body .. ARGV[n])
  local held = text and decoded(text)
  if held and held.version == ARGV[n + 1] then
    drop_rows(key, {ARGV[n]})
    gone[#gone + 1] = ARGV[n]
  end
end
return #gone
