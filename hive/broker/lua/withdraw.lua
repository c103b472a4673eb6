-- Takes back that a process waits: no message is pushed to it before it asks again.
-- KEYS    the queue, see record.lua
-- ARGV    owner
-- RETURNS nothing
if sub(call('HGET', STATE, 'waiter') or '', 1, 16) == ARGV[1] then
  call('HDEL', STATE, 'waiter')
end
