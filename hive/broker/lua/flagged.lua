-- Asks which deliveries somebody wants cancelled.
-- KEYS    see record.lua
-- ARGV    for each delivery two: id, fence
-- RETURNS the positions (from 0) of those
local flagged = {}
for at = 1, #ARGV, 2 do
  local r = redis.call('HMGET', RECORD .. ARGV[at], 's', 'f', 'z')
  if r[1] == 'r' and r[2] == ARGV[at + 1] and r[3] then
    flagged[#flagged + 1] = (at - 1) / 2
  end
end
return flagged
