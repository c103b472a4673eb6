-- Extends leases. One that ended, but that no sweep has taken back yet, is extended as well.
-- KEYS    see record.lua
-- ARGV    lease in ms, then for each delivery three: id, fence, owner
-- RETURNS the positions (from 0) of those that are lost
local lease_end = int(now_ms() + tonumber(ARGV[1]))
local lost = {}
for at = 2, #ARGV, 3 do
  local r = redis.call('HMGET', RECORD .. ARGV[at], 's', 'f', 'o')
  if r[1] == 'r' and r[2] == ARGV[at + 1] and r[3] == ARGV[at + 2] then
    redis.call('ZADD', LEASES, 'XX', lease_end, ARGV[at])
  else
    lost[#lost + 1] = (at - 2) / 3
  end
end
return lost
