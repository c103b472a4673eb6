-- Sets the block of fences that Postgres has reserved. Of two processes that reserved one, the higher block wins.
-- KEYS    see record.lua
-- ARGV    where it begins, where it ends
-- RETURNS 1 if it was taken, 0 if a higher one stands already
local limit = tonumber(redis.call('HGET', FENCE, 'limit') or '-1')
if tonumber(ARGV[1]) < limit then
  return 0
end
redis.call('HSET', FENCE, 'next', ARGV[1], 'limit', ARGV[2])
return 1
