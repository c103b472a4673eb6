-- Upkeep: promotes what is due, brings back what was abandoned, removes consumers that are gone.
-- KEYS    see record.lua
-- ARGV    limit, hive crash limit, a dead owner (then only its deliveries are brought back) or '', idle time in ms
--         after which a consumer without deliveries is removed, or '' to leave them, 0 to leave ended leases
-- RETURNS due, brought back, given up, and how many dead letters want to be written
local limit, hive_limit, dead_owner, idle = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local now = now_ms()
local due, lost = 0, {}
if dead_owner == '' then
  due = promote(now, limit)
  if ARGV[5] ~= '0' then
    lost = redis.call('ZRANGEBYSCORE', LEASES, '-inf', '(' .. int(now), 'LIMIT', 0, limit)
  end
else
  for _, id in ipairs(redis.call('ZRANGE', LEASES, 0, -1)) do
    if redis.call('HGET', RECORD .. id, 'o') == dead_owner then
      lost[#lost + 1] = id
    end
  end
end
local brought_back, given_up, added = 0, 0, 0
for _, id in ipairs(lost) do
  local record = RECORD .. id
  local r = redis.call('HMGET', record, 's', 'l', 'e', 'k', 'a', 'b', 'h', 'z')
  redis.call('ZREM', LEASES, id)
  if r[1] == 'r' then
    local lane, entry, key, attempt, started = tonumber(r[2]), r[3], r[4], tonumber(r[5]), r[6]
    -- Only what had started is charged for hive's death, and never as an attempt.
    local deaths = (tonumber(r[7]) or 0) + (started and 1 or 0)
    local wire = wire_of(lane, entry) or ''
    brought_back = brought_back + 1
    if started and deaths >= hive_limit then
      stage(id, lane, entry, wire, 'poison', 'hive_died', 'hive died ' .. deaths .. ' times while it ran', attempt)
      forget(id, key)
      given_up = given_up + 1
    elseif r[8] then
      drop_entry(lane, entry)
      forget(id, key)
    else
      drop_entry(lane, entry)
      redis.call('HDEL', record, 'o', 'b', 'v')
      redis.call('HSET', record, 'a', attempt - 1, 'h', deaths, 'g', 1)
      line_up(id, lane, wire, now)
      added = added + 1
    end
  end
end
wake_if_was_empty(added)
if idle ~= '' then
  for at = 1, 3 do
    local consumers = redis.pcall('XINFO', 'CONSUMERS', LANES[at], GROUP)
    if not consumers.err then
      for _, each in ipairs(consumers) do
        local c = {}
        for field = 1, #each, 2 do
          c[each[field]] = each[field + 1]
        end
        -- One with deliveries stays: removing it would lose their entries.
        if c['pending'] == 0 and (c['idle'] > tonumber(idle) or c['name'] == dead_owner) then
          redis.call('XGROUP', 'DELCONSUMER', LANES[at], GROUP, c['name'])
        end
      end
    end
  end
end
return {due, brought_back, given_up, redis.call('XLEN', DEAD)}
