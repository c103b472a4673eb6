-- Pauses or resumes a queue.
-- KEYS    the queue, see record.lua
-- ARGV    1 to pause, 0 to resume
-- RETURNS nothing
if ARGV[1] == '1' then
  call('HSET', STATE, 'paused', 1)
else
  call('HDEL', STATE, 'paused')
  call('XADD', WAKE, 'MAXLEN', 256, '*', 'w', 1)
end
