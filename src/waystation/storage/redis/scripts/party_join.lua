-- ARGV: field, owner, incarnation, ttl, flags, hash, token_exp, party_max, client_max, evict, log_max, linger,
--       new epoch, known epoch, known seq, whether a session id is unique in the party
local field = ARGV[1]
local found, text = get_record(field)
if found then
  return { 'exists', text }
end
if ARGV[16] == '1' then
  local session = string.sub(field, 17)
  for _, other in ipairs(redis.call('HKEYS', SESSIONS)) do
    if string.sub(other, 17) == session then
      return { 'rejected', 3 }
    end
  end
end
local now = now_ms()
local client = client_of(field)
local mine = tonumber(redis.call('HGET', CLIENTS, client) or '0')
if mine >= tonumber(ARGV[9]) then
  if ARGV[10] ~= '1' then
    return { 'rejected', 69 }
  end
  local oldest, best
  local all = redis.call('HGETALL', SESSIONS)
  for at = 1, #all, 2 do
    if client_of(all[at]) == client then
      local record = unpack_record(all[at + 1])
      local age = tonumber(record.active) * 1e15 + tonumber(record.joined_seq)
      if not best or age < best then
        oldest, best = all[at], age
      end
    end
  end
  remove(oldest, 22, now, ARGV[11], ARGV[12])
elseif redis.call('HLEN', SESSIONS) >= tonumber(ARGV[8]) then
  return { 'rejected', 68 }
end
local opened = redis.call('HLEN', SESSIONS) == 0
redis.call('HSETNX', META, 'epoch', ARGV[13])
if opened then
  for at = 1, 5 do
    redis.call('PERSIST', KEYS[at])
  end
end
local count = redis.call('HINCRBY', CLIENTS, client, 1)
local seq, ts = append('2', field, now, count, 0, '', ARGV[11])
put_record(field, {
  active = '1', owner = ARGV[2], incarnation = ARGV[3], fence = '1', joined_seq = whole(seq), joined_ms = ts,
  cursor = whole(seq), ttl = ARGV[4], flags = ARGV[5], hash = ARGV[6], previous = '', previous_until = '0',
  detached_ms = '0', deadline = '0', cause = '0', signal = '0000000000000000', token_exp = ARGV[7],
})
local told = seen_from(ARGV[14], ARGV[15])
return {
  'joined', seq, redis.call('HGET', META, 'epoch'), ts, count, redis.call('HLEN', SESSIONS), opened and 1 or 0,
  told[1], told[2],
}
