-- Extends leases. One that ended, but that no sweep has taken back yet, is extended as well.
-- KEYS    the queue, see record.lua
-- ARGV    lease in ms, then for each delivery three: id, fence (8 bytes), owner
-- RETURNS the positions (from 0) of those that are lost
local lease_end = now_ms() + tonumber(ARGV[1])
local ids, lost, leases = {}, {}, {}
for at = 2, #ARGV, 3 do
  ids[#ids + 1] = ARGV[at]
end
local records = call('HMGET', RECORD, unpack(ids))
for at, id in ipairs(ids) do
  if held(records[at], ARGV[at * 3], ARGV[at * 3 + 1]) then
    leases[#leases + 1] = lease_end
    leases[#leases + 1] = id
  else
    lost[#lost + 1] = at - 1
  end
end
for at = 1, #leases, 1000 do
  call('ZADD', LEASES, 'XX', unpack(leases, at, min(at + 999, #leases)))
end
return lost
