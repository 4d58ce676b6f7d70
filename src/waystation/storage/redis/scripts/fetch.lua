-- ARGV 3 after ('' begins a pass), 4 rows of a portion, 5 rows to look at in one call.
-- Answers {where to go on or '', then three for each row: sort key, body, end in s or ''}.
if alive(key) == nil then return {''} end
local after, portion, looked = ARGV[3], tonumber(ARGV[4]), 0

if after == '' then
  -- Rows of Autopush's nodes are not in `order`, nor is their end known to the sweep.
  local foreign = redis.call('ZDIFF', 2, key.msgs, key.order)
  if #foreign > 0 then
    each_chunk(foreign, function(chunk)
      local pairs_ = {}
      for _, member in ipairs(chunk) do
        pairs_[#pairs_ + 1] = 0
        pairs_[#pairs_ + 1] = member
      end
      redis.call('ZADD', key.order, unpack(pairs_))
    end)
    local first = redis.call('ZRANGE', key.ends, 0, 0, 'WITHSCORES')
    if first[2] then redis.call('ZADD', DUE, 'LT', in_ms(first[2]), uaid) end
  end
end

local channels = {}
for _, channel in ipairs(redis.call('LRANGE', key.channels, 0, -1)) do channels[channel] = true end

local low = after == '' and '-' or '(' .. after
while looked < tonumber(ARGV[5]) do
  local members = redis.call('ZRANGEBYLEX', key.order, low, '+', 'LIMIT', 0, portion)
  if #members == 0 then return {''} end
  local answer, lost = {''}, {}
  each_chunk(members, function(chunk)
    local bodies = {}
    for n, member in ipairs(chunk) do bodies[n] = key.body .. member end
    bodies = redis.call('MGET', unpack(bodies))
    local ends = redis.call('ZMSCORE', key.ends, unpack(chunk))
    local saved = redis.call('ZMSCORE', key.msgs, unpack(chunk))
    for n, member in ipairs(chunk) do
      if not (bodies[n] and saved[n]) then
        lost[#lost + 1] = member -- Redis let it go at its end, or Autopush took it away
      elseif channels[channel_of(member)] and not (ends[n] and in_ms(ends[n]) <= now) then
        answer[#answer + 1] = member
        answer[#answer + 1] = bodies[n]
        answer[#answer + 1] = ends[n] or ''
      end
    end
  end)
  drop_rows(key, lost)
  if #answer > 1 then return answer end
  low = '(' .. members[#members]
  looked = looked + #members
end
return {string.sub(low, 2)}
