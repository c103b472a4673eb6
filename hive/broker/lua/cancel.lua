-- Cancels what waits at once and flags what runs; a publish that marked it to run again is forgotten.
-- KEYS    the queue, see record.lua
-- ARGV    tenant ('' for system work) or '*' for any, 1 to count what was flagged before as well or 0, then ids
-- RETURNS how many were touched
local now = now_ms()
local touched_count = 0
open()
local records = call('HMGET', RECORD, unpack(ARGV, 3))
for at = 3, #ARGV do
  local id, record = ARGV[at], records[at - 2]
  local r = parse(record)
  if r and (ARGV[1] == '*' or r.tenant == ARGV[1]) then
    if r.state ~= 'r' or ARGV[2] == '1' or not has(r.flags, CANCEL) then
      touched_count = touched_count + 1
    end
    if r.state == 'r' then
      local flags = with(r.flags, CANCEL)
      if has(flags, RERUN) then
        flags = flags - RERUN
      end
      call('HSET', RECORD, id, sub(record, 1, FLAGS - 1) .. char(flags) .. sub(record, FLAGS + 1))
    else
      withdraw(id, r)
      forget(id, r)
    end
  end
end
close()
return touched_count
