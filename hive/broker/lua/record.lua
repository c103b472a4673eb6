-- What all scripts of a stream queue share; it is put before each of them.
--
-- A message goes through these places. Only in the window does it hold a part of its tenant's share:
--
--   publish ─▶ its tenant's line ─▶ the window: a lane's stream, waiting there or running ─▶ gone
--                     ▲                        │ retry, delay        │ its resource is taken
--                     └────── due ◀── later ◀──┘      blocked ◀──────┘
--
-- KEYS 1-3  lane:0-2     the windows: streams of entries {i = id}, read by the group `hive`. A foreign writer adds
--                        entries {i = id in hex, m = wire format}
--      4-6  queued:0-2   sorted sets: tenants with a line in this lane -> whose turn it is
--      7    later        sorted set: id -> when it is due (ms)
--      8    leases       sorted set: id -> when its lease ends (ms); exactly what runs
--      9    dead         stream: what was given up and waits to be written to Postgres
--      10   wake         stream of one entry: changes when there is something to claim for those who found nothing
--      11   state        hash: see `open`; `next` and `limit`: the block of fences; `expired`, `audit`
--      12   record       hash: id -> record, see below
--      13   keys         hash: dedup key -> the id of its one live holder
--      14   standing     hash: lane and tenant -> the cost of what stands in the window
--      15   slots        hash: process -> its live slots and until when that counts (ms)
--      16   weights      hash: tenant -> weight, where it is not 1
--      17   resources    hash: resource -> the running message that has it
--      18   kinds        sorted set, all scores 0: tenant and task, of which there is or was a message
--      19   progress     hash: id -> how far a running message is
--      20   line:        prefix of a sorted set for each lane and tenant: id -> its place
--      21   kind:        prefix of a set for each tenant and task: the ids of its messages
--      22   blocked:     prefix of a sorted set for each resource: id -> its place
-- All carry the same hash tag, so what is made from the prefixes lies in the same slot.
--
-- Ids are 16 bytes. A record is packed (a hash of its own for each message took three times as long):
--   state: w in the window, l in a line, d delayed, b blocked, r running;  lane 1-3;  fence, owner of the last claim
--   attempt: attempts begun;  crashes of children;  deaths of hive;  flags
--   place in its line;  published at;  expires at or 0;  in line since;  cost;  max attempts
--   entry in the stream or '';  tenant or '';  dedup key or '';  resource or '';  task;  then its wire format
local LANES, QUEUED = {KEYS[1], KEYS[2], KEYS[3]}, {KEYS[4], KEYS[5], KEYS[6]}
local LATER, LEASES, DEAD, WAKE, STATE, RECORD = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local HOLDERS, STANDING, SLOTS, WEIGHTS, RESOURCES = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local KINDS, PROGRESS, LINE, KIND, BLOCKED = KEYS[18], KEYS[19], KEYS[20], KEYS[21], KEYS[22]
local GROUP = 'hive'
local FORMAT = '>c1BI8c16HBBBI8I8I8I8I4HBc0Bc0Bc0Bc0Hc0'
local HEAD = 31 -- bytes before `place`
local FIXED = 69 -- bytes before the entry's length
local STARTED, REDELIVERED, RERUN, CANCEL, PROGRESSED = 1, 2, 4, 8, 16
local NOBODY = string.rep('\0', 16)
local SOME = 500 -- how many are moved at a time
local call, sub, byte, char = redis.call, string.sub, string.byte, string.char
local pack, unpack_bytes, floor, max, min = struct.pack, struct.unpack, math.floor, math.max, math.min

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

-- A whole number as text: Lua would print large ones with an exponent.
local function int(number)
  return string.format('%.0f', number)
end

local function has(flags, flag)
  return floor(flags / flag) % 2 == 1
end

local function with(flags, flag)
  return has(flags, flag) and flags or flags + flag
end

-- A record's parts, or nothing if it is none.
local function parse(record)
  if not record or #record < FIXED + 6 then
    return nil
  end
  local good, state, lane, fence, owner, attempt, crashes, deaths, flags, place, published, expires, since, cost, most,
    entry, tenant, key, resource, task, rest = pcall(unpack_bytes, FORMAT, record)
  if not good or lane < 1 or lane > 3 or cost < 1 or not string.find('wldbr', state, 1, true) then
    return nil
  end
  return {state = state, lane = lane, fence = fence, owner = owner, attempt = attempt, crashes = crashes,
    deaths = deaths, flags = flags, place = place, published = published, expires = expires, since = since,
    cost = cost, max = most, entry = entry, tenant = tenant, key = key, resource = resource, task = task, rest = rest}
end

local function pack_record(r, wire)
  return pack(FORMAT, r.state, r.lane, r.fence, r.owner, min(r.attempt, 65535), min(r.crashes, 255), min(r.deaths, 255),
    r.flags, r.place, r.published, r.expires, r.since, r.cost, r.max, #r.entry, r.entry, #r.tenant, r.tenant, #r.key,
    r.key, #r.resource, r.resource, #r.task, r.task) .. wire
end

-- Calls `command` on `key` with any number of arguments, so many at a time.
local function in_parts(command, key, arguments)
  for at = 1, #arguments, 1000 do
    call(command, key, unpack(arguments, at, min(at + 999, #arguments)))
  end
end

-- The queue's shared state, and the windows. `open` reads it, `close` writes what changed.
--
-- A tenant's share of a lane's window is 2 x live slots, by weight among the tenants that stand in it, measured in the
-- mean cost of what stands there: so cheap and dear jobs fill the slots alike. At least one message may always stand.
local FIELDS = {'slots', 'asleep', 'turn', 'seq', 'weighted', 'w1', 'n1', 'c1', 'w2', 'n2', 'c2', 'w3', 'n3', 'c3'}
local was, is = {}, {}
local standing_was, standing, weights, lined, touched = {}, {}, {}, {}, {}
local gone = {{}, {}, {}} -- entries to be removed from each lane
local queued = {}
local forgotten, unkinds, adding = {}, {}, {}

local function open()
  local values = call('HMGET', STATE, unpack(FIELDS))
  for at = 1, #FIELDS do
    local number = tonumber(values[at])
    if not number or number ~= number or number < 0 or number > 2 ^ 53 then
      number = FIELDS[at] == 'slots' and 24 or FIELDS[at] == 'asleep' and 1 or 0
    end
    was[FIELDS[at]], is[FIELDS[at]] = values[at] and number or nil, number
  end
  is.slots = max(1, is.slots)
end

local W, N, C = {'w1', 'w2', 'w3'}, {'n1', 'n2', 'n3'}, {'c1', 'c2', 'c3'}

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

-- The cost of what a tenant has in a window.
local function standing_of(lane, tenant)
  local name = lane .. tenant
  local cost = standing[name]
  if not cost then
    cost = tonumber(call('HGET', STANDING, name) or '0') or 0
    if not (cost >= 0 and cost < 2 ^ 50) then
      cost = 0
    end
    standing_was[name], standing[name] = cost, cost
  end
  return cost
end

local function enter(lane, tenant, cost)
  local before = standing_of(lane, tenant)
  if before == 0 then
    is[W[lane]] = is[W[lane]] + weight_of(tenant)
  end
  standing[lane .. tenant] = before + cost
  is[N[lane]] = is[N[lane]] + 1
  is[C[lane]] = is[C[lane]] + cost
end

local function leave(lane, tenant, cost)
  local before = standing_of(lane, tenant)
  local after = max(0, before - cost)
  if before > 0 and after == 0 then
    is[W[lane]] = max(0, is[W[lane]] - weight_of(tenant))
  end
  local name = lane .. tenant
  standing[name] = after
  touched[name] = true
  is[N[lane]] = max(0, is[N[lane]] - 1)
  is[C[lane]] = max(0, is[C[lane]] - cost)
end

-- How much more may enter a window, in cost; above 0: at least one message.
local function room(lane, tenant)
  local cost = standing_of(lane, tenant)
  if cost == 0 then
    return 1
  end
  local mean = is[N[lane]] > 0 and is[C[lane]] / is[N[lane]] or 1
  local weight = weight_of(tenant)
  return 2 * is.slots * mean * weight / max(weight, is[W[lane]]) - cost
end

-- Whether any tenant has a line in this lane.
local function any_queued(lane)
  local count = queued[lane]
  if count == nil then
    count = call('EXISTS', QUEUED[lane]) == 1
    queued[lane] = count
  end
  return count
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

-- Wakes those who found nothing. Whoever found something claims again by himself.
local function wake()
  if is.asleep ~= 0 then
    call('XADD', WAKE, 'MAXLEN', 1, '*', 'w', 1)
    is.asleep = 0
  end
end

local function next_place()
  is.seq = is.seq + 1
  return is.seq
end

-- Puts a message into its tenant's line, at its place. Its record is the caller's to store.
local function line_up(id, r)
  r.state, r.entry = 'l', ''
  local name = r.lane .. r.tenant
  call('ZADD', LINE .. name, int(r.place), id)
  if not is_queued(r.lane, r.tenant) then
    call('ZADD', QUEUED[r.lane], int(next_place()), r.tenant)
    lined[name], queued[r.lane] = true, true
  end
  touched[name] = true
end

-- Lets a message into the window. Its record is the caller's to store.
local function step_in(id, r)
  r.state, r.entry = 'w', call('XADD', LANES[r.lane], '*', 'i', id)
  enter(r.lane, r.tenant, r.cost)
end

-- Sets a message aside if its resource is taken. Its record is the caller's to store. A holder that no longer runs is
-- found by the audit of a sweep.
local function set_aside(id, r)
  if r.resource == '' or call('HEXISTS', RESOURCES, r.resource) == 0 then
    return false
  end
  r.state, r.entry = 'b', ''
  call('ZADD', BLOCKED .. r.resource, int(r.place), id)
  return true
end

-- Puts a message at the end of its line, or straight into the window.
local function put(id, r)
  r.place = next_place()
  if set_aside(id, r) then
    return
  elseif room(r.lane, r.tenant) > 0 and not is_queued(r.lane, r.tenant) then
    step_in(id, r)
  else
    line_up(id, r)
  end
end

-- Notes what has no record, or none that can be read: as a dead letter.
local function stage(id, lane, entry, wire, kind, code, summary, attempts)
  call('XADD', DEAD, '*', 'i', id, 'l', lane, 'e', entry, 'm', sub(wire, 1, 131072), 'kind', kind, 'code', code,
    'summary', summary, 'a', attempts)
end

local function reject(id, lane, entry, raw, reason)
  stage(id, lane, entry, raw, 'unparsable', 'unparsable', reason, 0)
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
  if r.task ~= '' then
    local kind = r.tenant .. ':' .. r.task
    local ids = unkinds[kind]
    if not ids then
      ids = {}
      unkinds[kind] = ids
    end
    ids[#ids + 1] = id
  end
end

local function drop_entry(lane, entry)
  if entry ~= '' then
    gone[lane][#gone[lane] + 1] = entry
  end
end

-- Takes a message that waits out of its place. Its end or its next place is the caller's.
local function withdraw(id, r)
  if r.state == 'w' then
    drop_entry(r.lane, r.entry)
    leave(r.lane, r.tenant, r.cost)
  elseif r.state == 'l' then
    call('ZREM', LINE .. r.lane .. r.tenant, id)
    touched[r.lane .. r.tenant] = true
  elseif r.state == 'd' then
    call('ZREM', LATER, id)
  elseif r.state == 'b' then
    call('ZREM', BLOCKED .. r.resource, id)
  end
end

local function flag_record(id, record, flag)
  call('HSET', RECORD, id, sub(record, 1, HEAD - 1) .. char(with(byte(record, HEAD), flag)) .. sub(record, HEAD + 1))
end

-- Whether a delivery is still its owner's: `fence` and `owner` as they stand in a record.
local function held(record, fence, owner)
  return record and byte(record, 1) == 114 and sub(record, 3, 10) == fence and sub(record, 11, 26) == owner
end

-- How many messages wait: in line, in a window, blocked or delayed.
local function unserved()
  return max(0, call('HLEN', RECORD) - call('ZCARD', LEASES))
end

-- Gives a resource back; the first one that waits for it returns to the line, at its place. True if there was one.
local function release(resource, id)
  if resource == '' then
    return
  end
  local holder = call('HGET', RESOURCES, resource)
  if holder and holder ~= id then
    return
  end
  call('HDEL', RESOURCES, resource)
  while true do
    local first = call('ZPOPMIN', BLOCKED .. resource)[1]
    if not first then
      return
    end
    local record = call('HGET', RECORD, first)
    local r = parse(record)
    if r and r.state == 'b' then
      line_up(first, r)
      call('HSET', RECORD, first, pack_record(r, sub(record, r.rest)))
      return true
    end
  end
end

-- Lets up to `most` messages of a tenant's line into the window, or with `by_share` as many as its share allows.
-- Returns how many.
local function admit(lane, tenant, most, by_share, now)
  local moved = 0
  while most > 0 and is_queued(lane, tenant) do
    local count = min(most, SOME)
    if by_share then
      local left = room(lane, tenant)
      if left <= 0 then
        break
      end
      local mean = is[N[lane]] > 0 and is[C[lane]] / is[N[lane]] or 1
      count = max(1, min(count, math.ceil(left / mean)))
    end
    local line = LINE .. lane .. tenant
    local ids = call('ZRANGE', line, 0, count - 1)
    if #ids == 0 then
      call('ZREM', QUEUED[lane], tenant)
      lined[lane .. tenant] = false
      break
    end
    local records, changed, taken = call('HMGET', RECORD, unpack(ids)), {}, {}
    for at = 1, #ids do
      if by_share and room(lane, tenant) <= 0 then
        break -- dearer than the mean: the others stay
      end
      local id, record = ids[at], records[at]
      local r = parse(record)
      taken[at] = id
      if not r or r.state ~= 'l' or r.lane ~= lane or r.tenant ~= tenant then
        if not record then
          reject(id, lane, '', id, 'an id without a message')
        elseif not r then
          reject(id, lane, '', record, 'a record that is none')
          forgotten[#forgotten + 1] = id
        end
      elseif r.expires > 0 and r.expires <= now then
        call('HINCRBY', STATE, 'expired', 1)
        forget(id, r)
      elseif set_aside(id, r) then
        changed[#changed + 1] = id
        changed[#changed + 1] = 'b' .. sub(record, 2)
      else
        -- Only its state and its entry change, and it has had no entry.
        local entry = call('XADD', LANES[lane], '*', 'i', id)
        enter(lane, tenant, r.cost)
        changed[#changed + 1] = id
        changed[#changed + 1] = 'w' .. sub(record, 2, FIXED) .. char(#entry) .. entry .. sub(record, FIXED + 2)
        moved = moved + 1
      end
    end
    most = most - #taken
    call('ZREM', line, unpack(taken))
    in_parts('HSET', RECORD, changed)
    if #taken == #ids and #ids < count or call('EXISTS', line) == 0 then
      call('ZREM', QUEUED[lane], tenant)
      lined[lane .. tenant] = false
    elseif #taken < #ids then
      break
    end
  end
  return moved
end

-- Brings messages into a window that ran dry while slots are free: from each line in turn, whatever its share. Since
-- only what a claimer has slots for is taken, this leaves nobody's share smaller.
local function draw(lane, count, now)
  local moved, rounds = 0, 0
  while moved < count and any_queued(lane) and rounds < 100 do
    rounds = rounds + 1
    local tenants = call('ZRANGE', QUEUED[lane], 0, min(count - moved, SOME) - 1)
    if #tenants == 0 then
      queued[lane] = false
      break
    end
    local each = max(1, floor((count - moved) / #tenants))
    for _, tenant in ipairs(tenants) do
      lined[lane .. tenant] = true
      moved = moved + admit(lane, tenant, each, false, now)
      if lined[lane .. tenant] then
        call('ZADD', QUEUED[lane], 'XX', int(next_place()), tenant)
      end
      if moved >= count then
        break
      end
    end
  end
  return moved
end

-- Moves what is due into line; returns how many.
local function promote(now, limit)
  local due = call('ZRANGEBYSCORE', LATER, '-inf', int(now), 'LIMIT', 0, limit)
  if #due == 0 then
    return 0
  end
  local records, moved = call('HMGET', RECORD, unpack(due)), 0
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
        call('HINCRBY', STATE, 'expired', 1)
        forget(id, r)
      else
        r.since = now
        put(id, r)
        call('HSET', RECORD, id, pack_record(r, sub(record, r.rest)))
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

-- Removes what ended, admits who may follow, and writes the state. To be called once, at the end.
local function close(now)
  for lane = 1, 3 do
    if #gone[lane] > 0 then
      for at = 1, #gone[lane], 1000 do
        local last = min(at + 999, #gone[lane])
        redis.pcall('XACK', LANES[lane], GROUP, unpack(gone[lane], at, last))
        call('XDEL', LANES[lane], unpack(gone[lane], at, last))
      end
    end
  end
  in_parts('HDEL', RECORD, forgotten)
  forgotten = {}
  for name in pairs(touched) do
    local lane, tenant = tonumber(sub(name, 1, 1)), sub(name, 2)
    if any_queued(lane) and is_queued(lane, tenant) then
      admit(lane, tenant, SOME, true, now)
    end
  end
  in_parts('HDEL', RECORD, forgotten)
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
  local changed = {}
  for _, field in ipairs(FIELDS) do
    if is[field] ~= was[field] and (was[field] or is[field] ~= 0) and field ~= 'slots' and field ~= 'weighted' then
      changed[#changed + 1], changed[#changed + 2] = field, int(is[field])
    end
  end
  if #changed > 0 then
    call('HSET', STATE, unpack(changed))
  end
end
