-- Asks who holds dedup keys.
-- KEYS    see record.lua
-- ARGV    keys
-- RETURNS for each key the id of its live holder, or ''
local holders = {}
for at = 1, #ARGV do
  local id = redis.call('GET', KEY .. ARGV[at])
  holders[at] = id and redis.call('EXISTS', RECORD .. id) == 1 and id or ''
end
return holders
