-- Asks who holds dedup keys.
-- KEYS    the queue, see record.lua
-- ARGV    keys
-- RETURNS for each key the id of its live holder, or ''
local holders = {}
for at = 1, #ARGV do
  local id = call('HGET', HOLDERS, ARGV[at])
  holders[at] = id and call('HEXISTS', RECORD, id) == 1 and id or ''
end
return holders
