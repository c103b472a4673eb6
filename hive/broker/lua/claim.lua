-- Gives messages to one process, and promotes what is due before.
-- KEYS    the queue, see record.lua
-- ARGV    owner, owner in hex, limit, lease in ms, for how long the next message may be pushed to this process (ms) if
--         there is none now: 0 if nobody would read it
-- RETURNS {0}: the block of fences is used up or lost, reserve another one; else {1, 1 if dead letters want to be
--         written, ms until the next one is due or -1, then for each message two: id, record}
local limit, lease, patience = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local time = now_ms()
open()
if is.paused ~= 0 then
  is.asleep = 1
  close()
  return {1, 0, -1}
end
promote(time, SOME)
local given = hand_out(ARGV[1], ARGV[2], limit, lease, time)
if not given then
  close()
  return {0}
end
is.waiters = without(is.waiters, ARGV[1]) -- it waits no more, or anew
if taken == 0 then
  is.asleep = 1
  if patience > 0 then
    is.waiters = sub(is.waiters .. ARGV[1] .. pack('>I8I8', time + patience, lease), -MOST_WAITERS * WAITER)
  end
end
local due = call('ZRANGE', LATER, 0, 0, 'WITHSCORES')[2]
if due then
  given[3] = min(max(0, (tonumber(due) or time) - time), 2 ^ 40)
end
close()
return given
