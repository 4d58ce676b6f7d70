-- What every script of one user agent begins with. KEYS[1] is the user agent's record; ARGV[1] is
-- how the user agent stands in every key: the hash tag of a cluster, if any, and the uaid. All
-- keys of a user agent share the slot of KEYS[1]. ARGV[2] is our clock in ms.
local id = ARGV[1]
local now = tonumber(ARGV[2])
local tag = string.match(id, '^({[^}]*})') or ''
local uaid = string.sub(id, #tag + 1)
local DUE = 'waystation/due/' .. tag
local CHUNK = 500
local MS_FROM = 100000000000 -- above it a time is in ms: early releases of autopush-rs wrote these

local function names(of)
  return {
    user = 'autopush/user/' .. of, co = 'autopush/co/' .. of, cursor = 'autopush/timestamp/' .. of,
    channels = 'autopush/channels/' .. of, msgs = 'autopush/msgs/' .. of,
    ends = 'autopush/msgs_exp/' .. of, body = 'autopush/msg/' .. of .. '/',
    order = 'waystation/order/' .. of, updates = 'waystation/updates/' .. of,
  }
end

local function in_ms(score)
  score = tonumber(score)
  if score > MS_FROM then return score end
  return score * 1000
end

local function decoded(text)
  local fine, value = pcall(cjson.decode, text)
  if fine and type(value) == 'table' then return value end
  return nil
end

-- When the record ends, or nothing if there is none. Autopush's nodes do not write the moment:
-- there the key's own expiry says it.
local function record_ends(key, text)
  local record = decoded(text)
  if record == nil then return nil end
  if type(record.expires_at_ms) == 'number' then return record.expires_at_ms, record end
  local at = redis.call('PEXPIRETIME', key.user)
  if at < 0 then at = math.huge end
  return at, record
end

local function alive(key)
  local text = redis.call('GET', key.user)
  if not text then return nil end
  local ends, record = record_ends(key, text)
  if ends == nil or ends <= now then return nil end
  return record
end

local function each_chunk(list, work)
  for first = 1, #list, CHUNK do
    work({unpack(list, first, math.min(first + CHUNK - 1, #list))})
  end
end

local function drop_rows(key, members)
  each_chunk(members, function(chunk)
    local bodies = {}
    for n, member in ipairs(chunk) do bodies[n] = key.body .. member end
    redis.call('UNLINK', unpack(bodies))
    redis.call('ZREM', key.msgs, unpack(chunk))
    redis.call('ZREM', key.order, unpack(chunk))
    redis.call('ZREM', key.ends, unpack(chunk))
  end)
end

local function drop_all(key)
  drop_rows(key, redis.call('ZRANGE', key.msgs, 0, -1))
  drop_rows(key, redis.call('ZRANGE', key.order, 0, -1))
  redis.call('UNLINK', key.user, key.co, key.cursor, key.channels, key.updates, key.msgs,
    key.ends, key.order)
end

-- Lua compares strings by the server's locale; keys and ids are compared by their bytes.
local function bytes_before(a, b)
  local last = math.min(#a, #b)
  for n = 1, last do
    local x, y = string.byte(a, n), string.byte(b, n)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function decimal_before(a, b)
  if #a ~= #b then return #a < #b end
  return bytes_before(a, b)
end

local function channel_of(sort_key)
  local kind = string.sub(sort_key, 1, 3)
  if kind == '01:' then return string.sub(sort_key, 4, 39) end
  if kind == '02:' then
    local colon = string.find(sort_key, ':', 4, true)
    return colon and string.sub(sort_key, colon + 1, colon + 36)
  end
  return string.sub(sort_key, 1, 36)
end

local function put_row(key, sort_key, body, saved_at_s, ends_s, kept_until_s)
  redis.call('SET', key.body .. sort_key, body, 'EXAT', kept_until_s)
  redis.call('ZADD', key.ends, ends_s, sort_key)
  redis.call('ZADD', key.msgs, saved_at_s, sort_key)
  redis.call('ZADD', key.order, 0, sort_key)
  redis.call('ZADD', DUE, 'LT', ends_s * 1000, uaid)
end

local key = names(id)
