-- Gives up deliveries whose wire format could not be read.
-- KEYS    the queue, see record.lua
-- ARGV    for each delivery three: id, fence (8 bytes), what is wrong with it
-- RETURNS nothing; the dead letters want to be written
local now, came = now_ms(), false
open()
for at = 1, #ARGV, 3 do
  local id = ARGV[at]
  local record = call('HGET', RECORD, id)
  local r = parse(record)
  if r and r.state == 'r' and sub(record, 3, 10) == ARGV[at + 1] then
    stage(id, r.lane, r.entry, wire_of(record), 'unparsable', 'unparsable', ARGV[at + 2], r.attempt)
    call('ZREM', LEASES, id)
    drop_entry(r.lane, r.entry)
    leave(r.lane, r.tenant, 1, r.cost)
    forget(id, r)
    came = release(r.resource, id) or came
  end
end
if came then
  wake()
end
close()
