-- Take the leader lease if it is free, or held by this instance: an exclusive lock on the instance's state
-- folder proves that every other boot of it is dead, so its lease need not be waited out.
-- KEYS[1]  the lease
-- ARGV[1]  this holder, "<instance>:<process>"
-- ARGV[2]  the instance's prefix, "<instance>:"
-- ARGV[3]  length of the lease in milliseconds
-- RETURNS  1 taken, 0 held by another instance
local holder = redis.call('GET', KEYS[1])
if holder and string.sub(holder, 1, #ARGV[2]) ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1
