-- Notes that handlers were entered.
-- KEYS    the queue, see record.lua
-- ARGV    for each delivery three: id, fence (8 bytes), owner
-- RETURNS nothing
for at = 1, #ARGV, 3 do
  local record = call('HGET', RECORD, ARGV[at])
  if held(record, ARGV[at + 1], ARGV[at + 2]) then
    flag_record(ARGV[at], record, STARTED)
  end
end
