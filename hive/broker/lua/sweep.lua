-- Upkeep: promotes what is due, brings back what was abandoned, removes consumers that are gone, recounts shares, and
-- looks for what somebody else has put in or taken out.
-- KEYS    the queue, see record.lua
-- ARGV    limit, hive crash limit, a dead owner (then only its deliveries are brought back) or '', the same in hex,
--         idle time in ms after which a consumer without deliveries is removed or '' to leave them, 0 to leave ended
--         leases
-- RETURNS due, brought back, given up, how many dead letters want to be written, how much was found wrong and repaired
local limit, hive_limit, dead_owner, dead_name, idle = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local now = now_ms()
local due, wrong, brought_back, given_up = 0, 0, 0, 0
local came = false -- one that waited for a resource may run
local RECOUNTED, LOOKED_AT = 20000, 300

-- What stands, counted anew: what waits in the windows, and what runs. More than that is not counted in one go.
local function recount()
  local costs, weight, count, sum = {}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}
  if call('XLEN', LANES[1]) + call('XLEN', LANES[2]) + call('XLEN', LANES[3]) + call('ZCARD', LEASES) > RECOUNTED then
    return
  end
  local function add(r)
    local name = r.lane .. r.tenant
    if not costs[name] then
      weight[r.lane] = weight[r.lane] + weight_of(r.tenant)
    end
    costs[name] = (costs[name] or 0) + r.cost
    count[r.lane], sum[r.lane] = count[r.lane] + 1, sum[r.lane] + r.cost
  end
  for lane = 1, 3 do
    local ids, entries = {}, call('XRANGE', LANES[lane], '-', '+')
    for at, found in ipairs(entries) do
      ids[at] = found[2][2] or ''
    end
    local records = fetch('HMGET', RECORD, ids)
    for at, found in ipairs(entries) do
      local r = #found[2] == 2 and parse(records[at])
      if r and r.state == 'w' and r.entry == found[1] and r.lane == lane then
        add(r)
      end
    end
  end
  for _, record in ipairs(fetch('HMGET', RECORD, call('ZRANGE', LEASES, 0, -1))) do
    local r = parse(record)
    if r and r.state == 'r' then
      add(r)
    end
  end
  for lane = 1, 3 do
    is[W[lane]], is[N[lane]], is[C[lane]] = weight[lane], count[lane], sum[lane]
  end
  call('DEL', STANDING)
  standing, standing_was = costs, {}
end

-- Live slots: what was announced and not repeated for too long counts no more.
local function count_slots()
  local all, sum, live, old = call('HGETALL', SLOTS), 0, 0, {}
  for at = 1, #all, 2 do
    local slots, ends = string.match(all[at + 1], '^(%d+) (%d+)$')
    if slots and tonumber(ends) > now then
      sum, live = sum + tonumber(slots), live + 1
    else
      old[#old + 1] = all[at]
    end
  end
  in_parts('HDEL', SLOTS, old)
  is.slots = max(1, live > 0 and min(sum, 1000000) or 24)
  if live > 0 then
    call('HSET', STATE, 'slots', int(is.slots))
  else
    call('HDEL', STATE, 'slots')
  end
end

local function bring_back(id, r, wire)
  call('ZREM', LEASES, id)
  drop_entry(r.lane, r.entry)
  leave(r.lane, r.tenant, 1, r.cost)
  -- Only what had started is charged for hive's death, and never as an attempt.
  local started = has(r.flags, STARTED)
  local deaths = r.deaths + (started and 1 or 0)
  if started and deaths >= hive_limit then
    stage(id, r.lane, r.entry, wire, 'poison', 'hive_died', 'hive died ' .. deaths .. ' times while it ran', r.attempt)
    forget(id, r)
    given_up = given_up + 1
  elseif has(r.flags, CANCEL) then
    forget(id, r)
  else
    r.attempt, r.deaths, r.since = max(0, r.attempt - 1), deaths, now
    r.flags = REDELIVERED + (has(r.flags, PROGRESSED) and PROGRESSED or 0)
    watch(id, r)
    line_up(id, r)
    call('HSET', RECORD, id, pack_record(r, wire))
  end
  came = release(r.resource, id) or came
end

-- Whether a message is where its record says.
local function in_place(id, r)
  if r.state == 'w' then
    local found = redis.pcall('XRANGE', LANES[r.lane], r.entry, r.entry)
    if found.err or not found[1] or found[1][2][2] ~= id then
      return false
    end
    -- Handed out by a script that then met a key of the wrong type: nobody will read it again.
    local given = redis.pcall('XPENDING', LANES[r.lane], GROUP, r.entry, r.entry, 1)
    return given.err or #given == 0
  elseif r.state == 'r' then
    return call('ZSCORE', LEASES, id)
  elseif r.state == 'd' then
    return call('ZSCORE', LATER, id)
  elseif r.state == 'b' then
    return r.resource ~= '' and call('ZSCORE', BLOCKED .. r.resource, id) and call('HEXISTS', RESOURCES, r.resource) == 1
  end
  return call('ZSCORE', LINE .. r.lane .. r.tenant, id) and is_queued(r.lane, r.tenant)
end

local function look_at_record(id, record)
  local r = parse(record)
  if not r or #id ~= 16 then
    reject(id, 2, '', record, 'a record that is none')
    forgotten[#forgotten + 1] = id
    wrong = wrong + 1
  elseif not in_place(id, r) then
    local wire = wire_of(record)
    wrong = wrong + 1
    if r.state == 'r' then
      bring_back(id, r, wire)
    else
      if r.state == 'w' then
        drop_entry(r.lane, r.entry)
        leave(r.lane, r.tenant, 1, r.cost)
      elseif r.state == 'b' and r.resource ~= '' then
        call('ZREM', BLOCKED .. r.resource, id)
      end
      line_up(id, r)
      call('HSET', RECORD, id, pack_record(r, wire))
    end
  end
end

local function look_at_member(key, id)
  if call('HEXISTS', RECORD, id) == 0 then
    call('ZREM', key, id)
    reject(id, 2, '', id, 'an id without a message')
    wrong = wrong + 1
  end
end

-- Looks at the next few of all there is. The place it has reached is kept in `audit`.
local function audit()
  local phase, cursor = string.match(call('HGET', STATE, 'audit') or '', '^([1-5]) (%d+)$')
  phase, cursor = tonumber(phase) or 1, cursor or '0'
  if #cursor > 19 then
    cursor = '0'
  end
  local command = (phase == 1 or phase == 5) and 'HSCAN' or 'ZSCAN'
  local key = ({RECORD, LATER, LEASES, KINDS, RESOURCES})[phase]
  local reply = call(command, key, cursor, 'COUNT', LOOKED_AT)
  local seen = reply[2]
  for at = 1, #seen, 2 do
    local name = seen[at]
    if phase == 1 then
      look_at_record(name, seen[at + 1])
    elseif phase == 2 or phase == 3 then
      look_at_member(key, name)
    elseif phase == 4 then
      if call('EXISTS', KIND .. name) == 0 then
        call('ZREM', KINDS, name)
      end
    elseif phase == 5 then
      local r = parse(call('HGET', RECORD, seen[at + 1]))
      if not r or r.state ~= 'r' or r.resource ~= name then
        came = release(name, seen[at + 1]) or came
      end
    end
  end
  if reply[1] == '0' then
    phase = phase % 5 + 1
    if phase == 1 then
      recount()
    end
  end
  call('HSET', STATE, 'audit', phase .. ' ' .. reply[1])
end

open()
local lost = {}
if dead_owner == '' then
  count_slots()
  due = promote(now, limit)
  if ARGV[6] ~= '0' then
    lost = call('ZRANGEBYSCORE', LEASES, '-inf', '(' .. int(now), 'LIMIT', 0, limit)
  end
else
  call('HDEL', SLOTS, dead_owner)
  local all = call('ZRANGE', LEASES, 0, -1)
  for at = 1, #all, 1000 do
    local last = min(at + 999, #all)
    for index, record in ipairs(call('HMGET', RECORD, unpack(all, at, last))) do
      if record and sub(record, 11, 26) == dead_owner then
        lost[#lost + 1] = all[at + index - 1]
      end
    end
  end
end
for _, id in ipairs(lost) do
  local record = call('HGET', RECORD, id)
  local r = parse(record)
  if r and r.state == 'r' then
    brought_back = brought_back + 1
    bring_back(id, r, wire_of(record))
  elseif not record then
    look_at_member(LEASES, id)
  else
    call('ZREM', LEASES, id)
    if not r then
      look_at_record(id, record)
    end
  end
end
if brought_back > given_up or came then
  wake()
end
if dead_owner == '' then
  close()
  -- What waits in the windows and what runs is what stands; unless somebody else has meddled.
  local stands = call('ZCARD', LEASES)
  for lane = 1, 3 do
    local pending = redis.pcall('XPENDING', LANES[lane], GROUP)
    stands = stands + call('XLEN', LANES[lane]) - (pending.err and 0 or pending[1])
  end
  if call('HDEL', STATE, 'recount') == 1 or stands ~= is.n1 + is.n2 + is.n3 then
    gone, unkinds, unexpired, forgotten = {{}, {}, {}}, {}, {}, {}
    open()
    recount()
    close()
  end
  gone, unkinds, unexpired, forgotten = {{}, {}, {}}, {}, {}, {}
  open()
  audit()
  if wrong > 0 or came then
    wake()
  end
end
close()
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
        if c['pending'] == 0 and (c['idle'] > tonumber(idle) or c['name'] == dead_name) then
          call('XGROUP', 'DELCONSUMER', LANES[at], GROUP, c['name'])
        end
      end
    end
  end
end
return {due, brought_back, given_up, call('XLEN', DEAD), wrong}
