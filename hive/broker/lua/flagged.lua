-- Asks which deliveries somebody wants cancelled.
-- KEYS    the queue, see record.lua
-- ARGV    for each delivery three: id, fence (8 bytes), owner
-- RETURNS the positions (from 0) of those
local flagged = {}
for at = 1, #ARGV, 3 do
  local record = call('HGET', RECORD, ARGV[at])
  if held(record, ARGV[at + 1], ARGV[at + 2]) and has(byte(record, FLAGS), CANCEL) then
    flagged[#flagged + 1] = (at - 1) / 3
  end
end
return flagged
