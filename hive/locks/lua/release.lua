-- Give the leader lease up, only if it is still ours: a successor's lease is never deleted.
-- KEYS[1]  the lease
-- ARGV[1]  this holder, "<instance>:<process>"
-- RETURNS  1 given up, 0 was not ours
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
