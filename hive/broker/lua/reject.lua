-- Gives up deliveries whose wire format could not be read.
-- KEYS    see record.lua
-- ARGV    for each delivery three: id, fence, what is wrong with it
-- RETURNS nothing; the dead letters want to be written
for at = 1, #ARGV, 3 do
  local id = ARGV[at]
  local r = redis.call('HMGET', RECORD .. id, 's', 'f', 'l', 'e', 'k', 'a')
  if r[1] == 'r' and r[2] == ARGV[at + 1] then
    local lane, entry = tonumber(r[3]), r[4]
    stage('', lane, entry, wire_of(lane, entry) or '', 'unparsable', 'unparsable', ARGV[at + 2], r[6])
    redis.call('ZREM', LEASES, id)
    forget(id, r[5])
  end
end
