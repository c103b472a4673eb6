-- Records how far a running message is, and resets its crash budgets.
-- KEYS    the queue, see record.lua
-- ARGV    id, fence (8 bytes), owner, how far it is
-- RETURNS 1, or 0 if the fence no longer holds
local id = ARGV[1]
local record = call('HGET', RECORD, id)
if not held(record, ARGV[2], ARGV[3]) then
  return 0
end
call('HSET', PROGRESS, id, ARGV[4])
local flags = char(with(byte(record, FLAGS), PROGRESSED))
call('HSET', RECORD, id, sub(record, 1, FLAGS - 3) .. '\0\0' .. flags .. sub(record, FLAGS + 1))
return 1
