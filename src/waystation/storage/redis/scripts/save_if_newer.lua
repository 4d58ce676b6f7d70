-- ARGV 3 now in s, then seven for each row: sort key, channel, accepted at in ms, message id, body,
-- when it ends in s, until when the key is kept in s.
-- How many were written; then three for each topic that met a message: the row's number from 0,
-- whether it was put there, and the body that it replaced, or the id that keeps the place.
if alive(key) == nil then return {0} end
local channels = {}
for _, channel in ipairs(redis.call('LRANGE', key.channels, 0, -1)) do channels[channel] = true end

local function accepted_at(held)
  if held.accepted_at_ms then return tonumber(held.accepted_at_ms) end
  local second = tonumber(held.timestamp) or 0
  local ms = tonumber(held.sortkey_timestamp)
  if ms and math.floor(ms / 1000) == second then return ms end
  return second * 1000
end

local function newer(held, at, message_id)
  if not held then return true end
  local held_at = accepted_at(held)
  if held_at ~= at then return held_at < at end
  return bytes_before(tostring(held.version), message_id)
end

local answer = {0}
for n = 4, #ARGV, 7 do
  local sort_key, channel, at, message_id, body, ends_s, kept_until_s = unpack(ARGV, n, n + 6)
  if channels[channel] then
    local text = redis.call('GET', key.body .. sort_key)
    local held = text and decoded(text)
    local put = newer(held, tonumber(at), message_id)
    if put then
      put_row(key, sort_key, body, ARGV[3], tonumber(ends_s), kept_until_s)
      answer[1] = answer[1] + 1
    end
    if held and string.sub(sort_key, 1, 3) == '01:' then
      answer[#answer + 1] = (n - 4) / 7
      answer[#answer + 1] = put and 1 or 0
      answer[#answer + 1] = put and text or tostring(held.version)
    end
  end
end
return answer
