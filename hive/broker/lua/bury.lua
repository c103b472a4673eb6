-- Removes what was given up, once Postgres has its dead letter.
-- KEYS    the queue, see record.lua
-- ARGV    entries in `dead`
-- RETURNS nothing
call('XDEL', DEAD, unpack(ARGV))
