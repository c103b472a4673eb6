-- Counts a queue; its cost does not depend on how much stands in it.
-- KEYS    see record.lua
-- ARGV    none
-- RETURNS waiting, delayed, running, the oldest waiting one's age in ms or -1, expired so far
local now = now_ms()
local oldest = -1
for at = 1, 3 do
  local from = '-'
  local groups = redis.pcall('XINFO', 'GROUPS', LANES[at])
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
    local next = redis.call('XRANGE', LANES[at], from, '+', 'COUNT', 1)
    if next[1] then
      local r = redis.call('HMGET', RECORD .. (next[1][2][2] or ''), 'q', 'p')
      local since = tonumber(r[1] or r[2] or string.match(next[1][1], '^%d+'))
      oldest = math.max(oldest, now - since, 0)
    end
  end
end
return {waiting(), redis.call('ZCARD', LATER), redis.call('ZCARD', LEASES), oldest,
  tonumber(redis.call('HGET', COUNTS, 'expired') or '0')}
