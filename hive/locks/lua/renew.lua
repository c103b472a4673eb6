-- Extend the leader lease, only if it is still ours.
-- KEYS[1]  the lease
-- ARGV[1]  this holder, "<instance>:<process>"
-- ARGV[2]  length of the lease in milliseconds
-- RETURNS  1 extended, 0 no longer ours
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
