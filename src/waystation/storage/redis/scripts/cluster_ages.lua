-- Nodes, and the milliseconds since each was renewed, in turn.
-- KEYS: the leases.
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local rows = redis.call('HGETALL', KEYS[1])
for i = 2, #rows, 2 do
    rows[i] = tostring(now_ms - tonumber(rows[i]))
end
return rows
