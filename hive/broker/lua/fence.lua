-- Sets the block of fences that Postgres has reserved. Of two processes that reserved one, the higher block wins.
-- KEYS    the queue, see record.lua
-- ARGV    where it begins, where it ends
-- RETURNS 1 if it was taken, 0 if a higher one stands already
local told = call('HMGET', STATE, 'next', 'limit')
local next, limit = sane(tonumber(told[1]), 2 ^ 53), sane(tonumber(told[2]), 0)
if tonumber(ARGV[1]) < limit and next <= limit and limit < 2 ^ 53 then
  return 0
end
call('HSET', STATE, 'next', ARGV[1], 'limit', ARGV[2])
return 1
