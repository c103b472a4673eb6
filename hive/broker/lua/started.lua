-- Notes that handlers were entered.
-- KEYS    see record.lua
-- ARGV    for each delivery three: id, fence, owner
-- RETURNS nothing
for at = 1, #ARGV, 3 do
  local r = redis.call('HMGET', RECORD .. ARGV[at], 's', 'f', 'o')
  if r[1] == 'r' and r[2] == ARGV[at + 1] and r[3] == ARGV[at + 2] then
    redis.call('HSET', RECORD .. ARGV[at], 'b', 1)
  end
end
