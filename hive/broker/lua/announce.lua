-- Notes how many handlers a process runs at once for this queue.
-- KEYS    the queue, see record.lua
-- ARGV    owner, slots, for how long that counts in ms
-- RETURNS how many live slots there are now
local now = now_ms()
call('HSET', SLOTS, ARGV[1], ARGV[2] .. ' ' .. int(now + tonumber(ARGV[3])))
local all, sum = call('HGETALL', SLOTS), 0
for at = 1, #all, 2 do
  local slots, ends = string.match(all[at + 1], '^(%d+) (%d+)$')
  if slots and tonumber(ends) > now then
    sum = sum + tonumber(slots)
  else
    call('HDEL', SLOTS, all[at])
  end
end
call('HSET', STATE, 'slots', int(min(sum, 1000000)))
return sum
