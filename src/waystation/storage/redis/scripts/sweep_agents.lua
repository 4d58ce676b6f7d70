-- The part of the sweep that one index leads to. KEYS[1] is the index; ARGV[1] is its hash tag,
-- 3 how many rows may go, 4 how many user agents may be looked at.
-- Answers {rows that went, whether more may be due}.
local function sweep_one(of, room)
  local key = names(tag .. of)
  local text = redis.call('GET', key.user)
  local ends = text and record_ends(key, text)
  if ends and ends <= now then
    local rows = redis.call('ZRANGE', key.msgs, 0, room - 1)
    drop_rows(key, rows)
    if #rows == room then return room end -- the record goes last, with the next call
    drop_all(key)
    redis.call('ZREM', DUE, of)
    return #rows + 1
  end
  local second = math.floor(now / 1000)
  local rows = redis.call('ZRANGEBYSCORE', key.ends, '-inf', second, 'LIMIT', 0, room)
  if #rows < room then
    local early = redis.call('ZRANGEBYSCORE', key.ends, '(' .. MS_FROM, now, 'LIMIT', 0,
      room - #rows)
    for _, member in ipairs(early) do rows[#rows + 1] = member end
  end
  drop_rows(key, rows)
  if not text then redis.call('UNLINK', key.channels, key.updates, key.co, key.cursor) end
  local first = redis.call('ZRANGE', key.ends, 0, 0, 'WITHSCORES')
  local due = ends or math.huge
  if first[2] then due = math.min(due, in_ms(first[2])) end
  if due == math.huge then
    redis.call('ZREM', DUE, of)
  else
    redis.call('ZADD', DUE, string.format('%.0f', due), of)
  end
  return #rows
end

local removed, room, looks = 0, tonumber(ARGV[3]), tonumber(ARGV[4])
for _ = 1, looks do
  if removed >= room then return {removed, 1} end
  local due = redis.call('ZRANGEBYSCORE', DUE, '-inf', ARGV[2], 'LIMIT', 0, 1)
  if #due == 0 then return {removed, 0} end
  removed = removed + sweep_one(due[1], room - removed)
end
return {removed, 1}
