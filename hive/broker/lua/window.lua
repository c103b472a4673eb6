-- The windows and the lines, and what moves messages in and out of them.
--
-- A script calls `open`, moves messages, and calls `close` once, at its end: that removes what ended and writes what
-- changed.
--
-- While nobody has a line, a message goes straight into the window, as long as its tenant's share has room: 2 x live
-- slots, by weight among the tenants that stand in it. What does not fit waits in its tenant's line, and from then on
-- everybody's does, until all lines are worked off. Claims take from the window first and then from the lines in turn
-- (`draw`, in hand.lua), straight to the consumer. That a settle moves the next one into the window was tried: adding
-- it to the stream, reading it from there and removing it again cost as much as all the rest, and gained nothing.
--
-- Shares are measured in the mean cost of what stands, so that cheap and dear jobs fill the slots alike. What runs holds
-- its share until it is settled; what is delayed or set aside holds none.
local W, N, C = {'w1', 'w2', 'w3'}, {'n1', 'n2', 'n3'}, {'c1', 'c2', 'c3'}
-- What a call has read and changed, see call.lua. `standing` and `lined`: by lane and tenant.
local standing_was, standing, weights, queued, lined, gone, forgotten, unkinds, unexpired

local function weight_of(tenant)
  if is.weighted == 0 then
    return 1
  end
  local weight = weights[tenant]
  if not weight then
    weight = tonumber(call('HGET', WEIGHTS, tenant) or '1') or 1
    if not (weight >= 0.001 and weight <= 1000000) then
      weight = 1
    end
    weights[tenant] = weight
  end
  return weight
end

local function cost_of(value)
  local cost = tonumber(value or '0') or 0
  return cost >= 0 and cost < 2 ^ 50 and cost or 0
end

-- The cost of what a tenant has in a window.
local function standing_of(lane, tenant)
  local name = lane .. tenant
  local cost = standing[name]
  if not cost then
    cost = cost_of(call('HGET', STANDING, name))
    standing_was[name], standing[name] = cost, cost
  end
  return cost
end

local function enter(lane, tenant, count, cost)
  local before = standing_of(lane, tenant)
  if before == 0 then
    is[W[lane]] = is[W[lane]] + weight_of(tenant)
  end
  standing[lane .. tenant] = before + cost
  is[N[lane]] = is[N[lane]] + count
  is[C[lane]] = is[C[lane]] + cost
end

local function leave(lane, tenant, count, cost)
  local before = standing_of(lane, tenant)
  local after = max(0, before - cost)
  if before > 0 and after == 0 then
    is[W[lane]] = max(0, is[W[lane]] - weight_of(tenant))
  end
  standing[lane .. tenant] = after
  is[N[lane]] = max(0, is[N[lane]] - count)
  is[C[lane]] = max(0, is[C[lane]] - cost)
end

local function mean_cost(lane)
  return is[N[lane]] > 0 and max(1, is[C[lane]] / is[N[lane]]) or 1
end

-- How much more may enter a window, in cost; above 0: at least one message.
local function room(lane, tenant)
  local cost = standing_of(lane, tenant)
  if is[N[lane]] >= 2 * is.slots then
    return 0
  elseif cost == 0 then
    return 1
  end
  local weight = weight_of(tenant)
  return 2 * is.slots * mean_cost(lane) * weight / max(weight, is[W[lane]]) - cost
end

-- Whether any tenant has a line in this lane.
local function any_queued(lane)
  if not queued.asked then
    queued.asked = true
    if call('EXISTS', QUEUED[1], QUEUED[2], QUEUED[3]) == 0 then
      queued[1], queued[2], queued[3] = false, false, false
    end
  end
  if queued[lane] == nil then
    queued[lane] = call('EXISTS', QUEUED[lane]) == 1
  end
  return queued[lane]
end

-- Whether the tenant has a line in this lane.
local function is_queued(lane, tenant)
  if not any_queued(lane) then
    return false
  end
  local name = lane .. tenant
  if lined[name] == nil then
    lined[name] = call('ZSCORE', QUEUED[lane], tenant) and true or false
  end
  return lined[name]
end

-- Reads at once what `standing_of` and `is_queued` would ask for one by one. `names`: lane and tenant of each.
local function prefetch(names)
  local unknown, by_lane = {}, {{}, {}, {}}
  for name in pairs(names) do
    if not standing[name] then
      unknown[#unknown + 1] = name
    end
    local lane = byte(name) - 48
    if lined[name] == nil and any_queued(lane) then
      by_lane[lane][#by_lane[lane] + 1] = sub(name, 2)
    end
  end
  for at, value in ipairs(fetch('HMGET', STANDING, unknown)) do
    local cost = cost_of(value)
    standing_was[unknown[at]], standing[unknown[at]] = cost, cost
  end
  for lane, tenants in ipairs(by_lane) do
    for at, score in ipairs(fetch('ZMSCORE', QUEUED[lane], tenants)) do
      lined[lane .. tenants[at]] = score and true or false
    end
  end
end

-- Wakes those who found nothing. Whoever found something claims again by himself.
local function wake()
  is.waiters = ''
  if is.asleep ~= 0 then
    call('XADD', WAKE, 'MAXLEN', 256, '*', 'w', 1)
    is.asleep = 0
  end
end

local function next_place()
  is.seq = is.seq + 1
  return is.seq
end

-- Lets a tenant have its turn, now that it has a line.
local function queue_up(lane, tenant)
  is.waiters = ''
  if not is_queued(lane, tenant) then
    call('ZADD', QUEUED[lane], next_place(), tenant)
    lined[lane .. tenant], queued[lane] = true, true
  end
end

-- Puts a message into its tenant's line, at its place. Its record is the caller's to store.
local function line_up(id, r)
  r.state, r.entry = 'l', ''
  call('ZADD', LINE .. r.lane .. r.tenant, r.place, id)
  queue_up(r.lane, r.tenant)
end

-- Sets a message aside if its resource is taken. Its record is the caller's to store. A holder that no longer runs is
-- found by the audit of a sweep.
local function set_aside(id, r)
  if r.resource == '' or call('HEXISTS', RESOURCES, r.resource) == 0 then
    return false
  end
  r.state, r.entry = 'b', ''
  call('ZADD', BLOCKED .. r.resource, r.place, id)
  return true
end

-- Adds an entry to a window; returns what a record says of it. What it holds of its tenant's share is the caller's.
local function add_entry(lane, id)
  is.waiters = ''
  return call('XADD', LANES[lane], '*', 'i', id)
end

-- Puts a message at the end of its line, or straight into the window. Its record is the caller's to store.
local function put(id, r)
  r.place = next_place()
  if set_aside(id, r) then
    return
  elseif not any_queued(r.lane) and room(r.lane, r.tenant) > 0 then
    r.state, r.entry = 'w', add_entry(r.lane, id)
    enter(r.lane, r.tenant, 1, r.cost)
  else
    line_up(id, r)
  end
end

-- Notes that a message of this kind is no more.
local function unkind(kind, id)
  local ids = unkinds[kind]
  if not ids then
    ids = {}
    unkinds[kind] = ids
  end
  ids[#ids + 1] = id
end

-- A message's end: record, dedup key and kind go when the script closes. Its place is the caller's.
local function forget(id, r)
  forgotten[#forgotten + 1] = id
  if r.key ~= '' and call('HGET', HOLDERS, r.key) == id then
    call('HDEL', HOLDERS, r.key)
  end
  if has(r.flags, PROGRESSED) then
    call('HDEL', PROGRESS, id)
  end
  if has(r.traits, 1) then
    unexpired[#unexpired + 1] = id
  end
  unkind(r.tenant .. ':' .. r.task, id)
end

local function expire(id, r)
  call('HINCRBY', STATE, 'expired', 1)
  forget(id, r)
end

local function drop_entry(lane, entry)
  if entry ~= '' then
    gone[lane][#gone[lane] + 1] = entry
  end
end

-- Ends a tenant's turns when its line has been emptied.
local function tidy_line(lane, tenant)
  if call('EXISTS', LINE .. lane .. tenant) == 0 then
    call('ZREM', QUEUED[lane], tenant)
    lined[lane .. tenant], queued[lane] = false, nil
  end
end

-- After a run a message may expire again while it waits.
local function watch(id, r)
  if r.expires > 0 then
    call('ZADD', EXPIRIES, r.expires, id)
  end
end

-- Takes a message that waits out of its place. Its end or its next place is the caller's.
local function withdraw(id, r)
  if r.state == 'w' then
    drop_entry(r.lane, r.entry)
    leave(r.lane, r.tenant, 1, r.cost)
  elseif r.state == 'l' then
    call('ZREM', LINE .. r.lane .. r.tenant, id)
    tidy_line(r.lane, r.tenant)
  elseif r.state == 'd' then
    call('ZREM', LATER, id)
  elseif r.state == 'b' then
    call('ZREM', BLOCKED .. r.resource, id)
  end
end

-- Gives a resource back; the first one that waits for it returns to the line, at its place. True if there was one.
local function release(resource, id)
  if resource == '' then
    return false
  end
  local holder = call('HGET', RESOURCES, resource)
  if holder and holder ~= id then
    return false
  end
  call('HDEL', RESOURCES, resource)
  while true do
    local first = call('ZPOPMIN', BLOCKED .. resource)[1]
    if not first then
      return false
    end
    local record = call('HGET', RECORD, first)
    local r = parse(record)
    if r and r.state == 'b' then
      line_up(first, r)
      call('HSET', RECORD, first, pack_record(r, wire_of(record)))
      return true
    end
  end
end

-- Removes the entries of what left the windows.
local function remove_gone()
  for lane = 1, 3 do
    if #gone[lane] > 0 then
      for at = 1, #gone[lane], 1000 do
        local last = min(at + 999, #gone[lane])
        redis.pcall('XACK', LANES[lane], GROUP, unpack(gone[lane], at, last))
        local done = redis.pcall('XDEL', LANES[lane], unpack(gone[lane], at, last))
        if type(done) == 'table' then -- one of them is no entry's id: a foreign record named it
          for index = at, last do
            redis.pcall('XACK', LANES[lane], GROUP, gone[lane][index])
            redis.pcall('XDEL', LANES[lane], gone[lane][index])
          end
        end
      end
      gone[lane] = {}
    end
  end
end

-- Drops what has waited too long, and moves what is due into line; returns how many were due.
local function promote(now, limit)
  local late = call('ZRANGEBYSCORE', EXPIRIES, '-inf', now, 'LIMIT', 0, limit)
  if #late > 0 then
    local records = fetch('HMGET', RECORD, late)
    for at, id in ipairs(late) do
      local r = parse(records[at])
      if r and r.state ~= 'r' and r.expires > 0 and r.expires <= now then
        withdraw(id, r)
        expire(id, r)
      end
    end
    remove_gone()
    in_parts('ZREM', EXPIRIES, late)
    in_parts('HDEL', RECORD, forgotten)
  end
  local due = call('ZRANGEBYSCORE', LATER, '-inf', now, 'LIMIT', 0, limit)
  if #due == 0 then
    return 0
  end
  local records, moved = fetch('HMGET', RECORD, due), 0
  for at, id in ipairs(due) do
    local record = records[at]
    local r = parse(record)
    if not record then
      reject(id, 2, '', id, 'an id without a message')
    elseif not r then
      reject(id, 2, '', record, 'a record that is none')
      forgotten[#forgotten + 1] = id
    elseif r.state == 'd' then
      if r.expires > 0 and r.expires <= now then
        expire(id, r)
      else
        r.since = now
        put(id, r)
        call('HSET', RECORD, id, pack_record(r, wire_of(record)))
        moved = moved + 1
      end
    end
  end
  in_parts('ZREM', LATER, due)
  if moved > 0 then
    wake()
  end
  return moved
end

-- Writes what changed. To be called once, at the end.
local function close()
  remove_gone()
  in_parts('HDEL', RECORD, forgotten)
  in_parts('ZREM', EXPIRIES, unexpired)
  for kind, ids in pairs(unkinds) do
    in_parts('SREM', KIND .. kind, ids)
  end
  local set, unset = {}, {}
  for name, cost in pairs(standing) do
    if cost ~= standing_was[name] then
      if cost == 0 then
        unset[#unset + 1] = name
      else
        set[#set + 1], set[#set + 2] = name, int(cost)
      end
    end
  end
  in_parts('HSET', STANDING, set)
  in_parts('HDEL', STANDING, unset)
  write_state()
end
