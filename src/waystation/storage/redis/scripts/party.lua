-- What all scripts of a party share. KEYS: meta, sessions, clients, log, detached, bell.
-- Ids are 16 hex digits, because numbers of Lua are doubles; hashes are hex too. Time is Redis's own.
local META, SESSIONS, CLIENTS, LOG, DETACHED, BELL = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local EPOCH_2020 = 1577836800000
local COUNTER_MAX = 2097151
local FIELDS = {
  'active', 'owner', 'incarnation', 'fence', 'joined_seq', 'joined_ms', 'cursor', 'ttl', 'flags', 'hash',
  'previous', 'previous_until', 'detached_ms', 'deadline', 'cause', 'signal', 'token_exp',
}

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

local function whole(n)
  return string.format('%.0f', n)
end

local function unpack_record(text)
  local record, at = {}, 1
  for part in string.gmatch(text .. '|', '([^|]*)|') do
    record[FIELDS[at]] = part
    at = at + 1
  end
  return record
end

local function pack_record(record)
  local parts = {}
  for at, name in ipairs(FIELDS) do
    parts[at] = record[name] or ''
  end
  return table.concat(parts, '|')
end

local function get_record(field)
  local text = redis.call('HGET', SESSIONS, field)
  if not text then
    return nil
  end
  return unpack_record(text), text
end

-- Whether whoever says so still holds the session. The fence alone would not do: an id that is used again
-- begins with the same one.
local function is_held(record, fence, owner, incarnation)
  return record and record.fence == fence and record.owner == owner and record.incarnation == incarnation
end

local function put_record(field, record)
  local text = pack_record(record)
  redis.call('HSET', SESSIONS, field, text)
  return text
end

-- seq, time and the hybrid clock go on; the entry is logged and told.
local function append(kind, field, now, count, code, payload, log_max)
  local seq = redis.call('HINCRBY', META, 'seq', 1)
  local meta = redis.call('HMGET', META, 'ts', 'hlc_ms', 'hlc_n', 'epoch')
  local ts = math.max(tonumber(meta[1] or '0'), now)
  local ms, n = tonumber(meta[2] or '0'), tonumber(meta[3] or '-1')
  local wall = now - EPOCH_2020
  if wall > ms then
    ms, n = wall, 0
  elseif n >= COUNTER_MAX then
    ms, n = ms + 1, 0
  else
    n = n + 1
  end
  redis.call('HSET', META, 'ts', whole(ts), 'hlc_ms', whole(ms), 'hlc_n', whole(n))
  local entry = table.concat({
    whole(seq), kind, field, whole(ms), whole(n), whole(ts), whole(count), whole(code), payload or '',
  }, ':')
  redis.call('XADD', LOG, 'MAXLEN', '=', log_max, whole(seq) .. '-0', 'e', entry)
  redis.call('SPUBLISH', BELL, 'e' .. meta[4] .. ':' .. entry)
  return seq, whole(ts), entry
end

local function client_of(field)
  return string.sub(field, 1, 16)
end

-- A session is gone: its LEAVE is logged, and an empty party lingers.
local function remove(field, code, now, log_max, linger)
  redis.call('HDEL', SESSIONS, field)
  redis.call('ZREM', DETACHED, field)
  local count = redis.call('HINCRBY', CLIENTS, client_of(field), -1)
  if count <= 0 then
    redis.call('HDEL', CLIENTS, client_of(field))
    count = 0
  end
  local seq = append('3', field, now, count, code, '', log_max)
  local size = redis.call('HLEN', SESSIONS)
  if size == 0 then
    for at = 1, 5 do
      redis.call('PEXPIRE', KEYS[at], linger)
    end
  end
  return seq, size, count
end

-- Everybody, or only what the caller has not seen yet.
local function seen_from(known_epoch, known_seq)
  local epoch = redis.call('HGET', META, 'epoch')
  if known_epoch == epoch then
    local first = redis.call('XRANGE', LOG, '-', '+', 'COUNT', 1)
    local first_seq = first[1] and tonumber(string.match(first[1][1], '^(%d+)')) or 0
    if first_seq <= tonumber(known_seq) + 1 then
      local entries = {}
      for _, row in ipairs(redis.call('XRANGE', LOG, '(' .. known_seq .. '-0', '+')) do
        entries[#entries + 1] = row[2][2]
      end
      return { 'entries', entries }
    end
  end
  local members = {}
  local all = redis.call('HGETALL', SESSIONS)
  for at = 1, #all, 2 do
    members[#members + 1] = all[at] .. string.sub(all[at + 1], 1, 1)
  end
  return { 'members', members }
end

local function merged_flags(known, wished)
  local function has(value, bit)
    return math.floor(value / bit) % 2
  end
  local kept = has(wished, 4) * 4 + has(wished, 8) * 8
  if kept == 0 then
    kept = has(known, 4) * 4 + has(known, 8) * 8
  end
  return kept + math.max(has(known, 256), has(wished, 256)) * 256
end
