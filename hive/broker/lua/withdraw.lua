-- Takes back that a process waits: no message is pushed to it before it asks again.
-- KEYS    the queue, see record.lua
-- ARGV    owner
-- RETURNS nothing
open()
is.waiters = without(is.waiters, ARGV[1])
close()
