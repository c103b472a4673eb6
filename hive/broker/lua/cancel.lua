-- Cancels what waits at once and flags what runs; a publish that marked it to run again is forgotten.
-- KEYS    see record.lua
-- ARGV    tenant or '*' for any, then ids
-- RETURNS how many were touched
local touched = 0
for at = 2, #ARGV do
  local id = ARGV[at]
  local r = redis.call('HMGET', RECORD .. id, 's', 'l', 'e', 'k', 't')
  if r[1] and (ARGV[1] == '*' or r[5] == ARGV[1]) then
    if r[1] == 'r' then
      redis.call('HSET', RECORD .. id, 'z', 1)
      redis.call('HDEL', RECORD .. id, 'v')
    else
      if r[1] == 'w' then
        redis.call('XDEL', LANES[tonumber(r[2])], r[3])
      else
        redis.call('ZREM', LATER, id)
      end
      forget(id, r[4])
    end
    touched = touched + 1
  end
end
return touched
