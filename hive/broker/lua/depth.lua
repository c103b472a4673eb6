-- Counts a queue; its cost does not depend on how much stands in it.
-- KEYS    the queue, see record.lua
-- ARGV    none
-- RETURNS waiting, delayed, running, the oldest waiting one's age in ms or -1, expired so far
local now = now_ms()
local since
open()
local foreign = 0 -- entries by others, which have no record yet
local function consider(id)
  local r = parse(call('HGET', RECORD, id))
  if r and (not since or r.since < since) then
    since = r.since
  end
end
for at = 1, 3 do
  local from = '-'
  local groups = redis.pcall('XINFO', 'GROUPS', LANES[at])
  local pending = redis.pcall('XPENDING', LANES[at], GROUP)
  foreign = foreign + call('XLEN', LANES[at]) - (pending.err and 0 or pending[1])
  if not groups.err then
    for _, each in ipairs(groups) do
      local g = {}
      for field = 1, #each, 2 do
        g[each[field]] = each[field + 1]
      end
      if g['name'] == GROUP then
        from = '(' .. g['last-delivered-id']
      end
    end
    local next = call('XRANGE', LANES[at], from, '+', 'COUNT', 1)
    if next[1] then
      consider(next[1][2][2] or '')
    end
  end
  for _, tenant in ipairs(call('ZRANGE', QUEUED[at], 0, 99)) do
    local first = call('ZRANGE', LINE .. at .. tenant, 0, 0)[1]
    if first then
      consider(first)
    end
  end
end
local delayed, running = call('ZCARD', LATER), call('ZCARD', LEASES)
foreign = max(0, foreign + running - is.n1 - is.n2 - is.n3)
local waiting = max(0, call('HLEN', RECORD) - delayed - running) + foreign
return {waiting, delayed, running, since and waiting > 0 and max(0, now - since) or -1,
  tonumber(call('HGET', STATE, 'expired') or '0') or 0}
