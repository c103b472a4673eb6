-- Handing out: messages of the windows and lines to one process.
local owner, consumer, lease_end, fence, now, taken
local answer, records, leases, ours, dry -- ours: what was given a resource just now

local function read(lane, count)
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'STREAMS', LANES[lane], '>')
  if type(reply) == 'table' and reply.err then
    -- A new queue, or a wiped Redis. Groups begin at 0, so nothing that was sent before them is missed.
    for at = 1, 3 do
      redis.pcall('XGROUP', 'CREATE', LANES[at], GROUP, '0', 'MKSTREAM')
    end
    reply = call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'STREAMS', LANES[lane], '>')
  end
  return reply and reply[1] and reply[1][2] or {}
end

-- Whether another running message has the resource.
local function taken_by_another(resource, id)
  local holder = call('HGET', RESOURCES, resource)
  if not holder or holder == id or ours[holder] then
    return holder and holder ~= id
  end
  local record = call('HGET', RECORD, holder)
  local r = parse(record)
  return r and r.state == 'r' and r.resource == resource
end

-- An entry by somebody else: its id in hex, and its wire format. It stands in the line of system work.
local function adopt(lane, entry, fields)
  local hex, wire = fields[2], fields[4]
  if #fields ~= 4 or fields[1] ~= 'i' or fields[3] ~= 'm' or not string.find(hex, '^' .. string.rep('%x', 32) .. '$') then
    return nil
  end
  local id = string.gsub(hex, '..', function(pair) return char(tonumber(pair, 16)) end)
  if call('HEXISTS', RECORD, id) == 1 then
    return nil
  end
  local r = {state = 'w', lane = lane, fence = 0, owner = NOBODY, attempt = 0, crashes = 0, deaths = 0, flags = 0,
    place = next_place(), published = now, expires = 0, since = now, cost = 1, max = 4, traits = 0, entry = entry,
    tenant = '', key = '', resource = '', task = ''}
  local record = pack_record(r, wire)
  call('HSET', RECORD, id, record)
  enter(lane, '', 1, 1)
  return id, record
end

local FRESH = '\0\0\0\0\0' -- no attempt, crash, death or flag

local function give(id, record, attempt)
  fence, taken = fence + 1, taken + 1
  local after = 'r' .. sub(record, 2, 2) .. pack('>I8', fence) .. owner .. attempt .. sub(record, FLAGS - 2)
  records[#records + 1] = id
  records[#records + 1] = after
  leases[#leases + 1] = lease_end
  leases[#leases + 1] = id
  answer[#answer + 1] = id
  answer[#answer + 1] = after
end

-- An entry of no plain message: dropped, set aside, or given all the same.
local function take_other(lane, found, id, record)
  local entry, fields = found[1], found[2] or {}
  if not id then
    id, record = adopt(lane, entry, fields)
  end
  local r = id and parse(record)
  if not r or r.state ~= 'w' or r.entry ~= entry or r.lane ~= lane then
    drop_entry(lane, entry)
    answer[2] = 1
    if id and record and not r then
      reject(id, lane, entry, record, 'a record that is none')
      forgotten[#forgotten + 1] = id
    else
      reject('', lane, entry, table.concat(fields, '\n'), 'an entry that is no message')
    end
  elseif r.expires > 0 and r.expires <= now then
    withdraw(id, r)
    expire(id, r)
  elseif r.resource ~= '' and taken_by_another(r.resource, id) then
    withdraw(id, r)
    r.state, r.entry = 'b', ''
    call('ZADD', BLOCKED .. r.resource, r.place, id)
    call('HSET', RECORD, id, pack_record(r, wire_of(record)))
  else
    if r.resource ~= '' then
      call('HSET', RESOURCES, r.resource, id)
      ours[id] = true
    end
    give(id, record, pack('>H', min(r.attempt + 1, 65535)))
  end
end

local function take(lane, entries)
  local ids, own = {}, {}
  for at, found in ipairs(entries) do
    local fields = found[2]
    if fields and #fields == 2 and fields[1] == 'i' and #fields[2] == 16 then
      own[at] = #ids + 1
      ids[#ids + 1] = fields[2]
    end
  end
  local its = fetch('HMGET', RECORD, ids)
  for at, found in ipairs(entries) do
    local id = own[at] and ids[own[at]]
    local record, entry = id and its[own[at]], found[1]
    if record and #record > UNCHANGING and byte(record, 1) == W_STATE and byte(record, 2) == lane
      and plain(record, now) and sub(record, ENTRY + 1, ENTRY + #entry) == entry
      and byte(record, ENTRY) == #entry and sub(record, FLAGS - 4, FLAGS) == FRESH then
      give(id, record, '\0\1')
    else
      take_other(lane, found, id, record)
    end
  end
end

-- One of a line that is no plain message: dropped, set aside, or given all the same.
local function draw_other(id, record, want)
  local r = parse(record)
  if not record then
    reject(id, want.lane, '', id, 'an id without a message')
    answer[2] = 1
  elseif not r then
    reject(id, want.lane, '', record, 'a record that is none')
    forgotten[#forgotten + 1] = id
    answer[2] = 1
  elseif r.state ~= 'l' or r.lane ~= want.lane or r.tenant ~= want.tenant then
    return -- it is elsewhere
  elseif r.expires > 0 and r.expires <= now then
    expire(id, r)
  elseif r.resource ~= '' and taken_by_another(r.resource, id) then
    set_aside(id, r)
    call('HSET', RECORD, id, pack_record(r, wire_of(record)))
  else
    if r.resource ~= '' then
      call('HSET', RESOURCES, r.resource, id)
      ours[id] = true
    end
    want.moved, want.cost = want.moved + 1, want.cost + r.cost
    give(id, record, pack('>H', min(r.attempt + 1, 65535)))
  end
end

-- Gives the next `chunk` messages of each want's line, but no more than its `count`, and none beyond `left` in cost.
local function draw_some(wants)
  local ids, whose = {}, {}
  for _, want in ipairs(wants) do
    local line, chunk = LINE .. want.lane .. want.tenant, want.chunk
    local found = call('ZRANGE', line, 0, chunk) -- one more than wanted, to see whether something is left
    if #found > chunk then
      call('ZREMRANGEBYRANK', line, 0, chunk - 1)
    else
      chunk = #found
      call('DEL', line)
      call('ZREM', QUEUED[want.lane], want.tenant)
      lined[want.lane .. want.tenant], queued[want.lane] = false, nil
    end
    want.lost = false
    for at = 1, chunk do
      ids[#ids + 1] = found[at]
      whose[#ids] = want
    end
  end
  local its = fetch('HMGET', RECORD, ids)
  for at, id in ipairs(ids) do
    local record, want = its[at], whose[at]
    local cost = record and sub(record, COST, COST + 3) or ONE
    cost = cost == ONE and 1 or #cost == 4 and max(1, (unpack_bytes('>I4', cost))) or 1
    -- By share, one is let through as long as that brings the tenant nearer to its part than it was.
    if want.moved >= want.count
      or want.left and not (want.first and want.moved == 0) and cost > 2 * (want.left - want.cost) then
      want.back = want.back or {}
      want.back[#want.back + 1] = record and #record > UNCHANGING and unpack_bytes('>I8', record, PLACE) or 0
      want.back[#want.back + 1] = id
    elseif record and #record > UNCHANGING and byte(record, 1) == L_STATE and byte(record, 2) == want.lane
      and plain(record, now) and sub(record, FLAGS - 4, FLAGS) == FRESH then
      want.moved, want.cost = want.moved + 1, want.cost + cost
      give(id, record, '\0\1')
    else
      local before = want.moved
      draw_other(id, record, want)
      want.lost = want.lost or want.moved == before
    end
  end
  for _, want in ipairs(wants) do
    if want.back then
      in_parts('ZADD', LINE .. want.lane .. want.tenant, want.back)
      queue_up(want.lane, want.tenant)
    end
  end
end

-- Gives messages of lines: of each want up to `count`. What is set aside or dropped does not cost a turn.
local function draw_all(wants)
  local open_wants = wants
  for _, want in ipairs(wants) do
    want.moved, want.cost, want.chunk = 0, 0, want.count
  end
  for _ = 1, 6 do
    draw_some(open_wants)
    local again = {}
    for _, want in ipairs(open_wants) do
      if want.lost and not want.back and want.moved < want.count and lined[want.lane .. want.tenant] then
        want.chunk = min(SOME, want.chunk * 4)
        again[#again + 1] = want
      end
    end
    if #again == 0 then
      break
    end
    open_wants = again
  end
  for _, want in ipairs(wants) do
    if want.moved > 0 then
      enter(want.lane, want.tenant, want.moved, want.cost)
    end
  end
end

-- Gives messages of the lines, whose turn it is first: as long as a tenant has less than its part of all that will
-- stand then. If slots are left over, nobody needs them more: then whose turn it is, whatever it has. Those who had
-- their turn stand last.
local function draw(lane, count)
  local goal, seen, by_share = taken + count, 0, true
  local turns = call('ZCARD', QUEUED[lane])
  for _ = 1, 100 do
    if taken >= goal or turns == 0 then
      return
    end
    local missing = goal - taken
    local tenants = call('ZRANGE', QUEUED[lane], 0, min(missing + 8, 300) - 1)
    if #tenants == 0 then
      return
    end
    local names = {}
    for _, tenant in ipairs(tenants) do
      names[lane .. tenant] = true
      lined[lane .. tenant] = true
    end
    prefetch(names)
    local weight = is[W[lane]]
    for _, tenant in ipairs(tenants) do
      if standing_of(lane, tenant) == 0 then
        weight = weight + weight_of(tenant)
      end
    end
    local mean = mean_cost(lane)
    local each = max(1, floor(missing / #tenants))
    local wants, planned, passed = {}, 0, {}
    for _, tenant in ipairs(tenants) do
      local stands = standing_of(lane, tenant)
      local left = (is[N[lane]] + missing) * mean * weight_of(tenant) / max(1, weight) - stands
      if not by_share then
        wants[#wants + 1] = {lane = lane, tenant = tenant, count = min(SOME, each)}
        planned = planned + each
      elseif stands == 0 or left >= 0.5 then
        local most = min(SOME, each, max(1, math.ceil(left / mean)))
        wants[#wants + 1] = {lane = lane, tenant = tenant, count = most, left = left, first = stands == 0}
        planned = planned + most
      end
      passed[#passed + 1] = tenant
      if planned >= missing then
        break
      end
    end
    seen = seen + #passed
    draw_all(wants)
    local places = {}
    for _, tenant in ipairs(passed) do
      if lined[lane .. tenant] then
        places[#places + 1] = next_place()
        places[#places + 1] = tenant
      end
    end
    in_parts('ZADD', QUEUED[lane], places)
    if taken + missing == goal and taken < goal and seen >= min(turns, 300) then
      by_share = false -- nobody else has less than its part
    end
  end
end

local function serve(lane, count)
  local goal = taken + count
  while taken < goal and not dry[lane] do
    local wanted = goal - taken
    local entries = read(lane, wanted)
    take(lane, entries)
    if taken < goal and #entries < wanted then
      draw(lane, goal - taken)
      dry[lane] = taken < goal
    end
  end
end

local LANE_OF_TURN = {1, 2, 1, 1, 3, 1, 2, 1, 2, 1}

-- Gives up to `limit` messages to a process; nothing when the block of fences is used up or lost. Lanes are served
-- 6:3:1: of ten turns high has six, normal three and low one, and a turn that a lane cannot use goes to the highest that
-- can. Returns 1, 1 if dead letters want to be written, -1, then id and record of each message.
local function hand_out(to, name, limit, lease, time)
  fence = is.next
  if fence + limit > is.limit then
    return nil
  end
  owner, consumer, now, lease_end, taken = to, name, time, time + lease, 0
  answer, records, leases, ours, dry = {1, 0, -1}, {}, {}, {}, {}
  local turns = {0, 0, 0}
  for at = 0, min(limit, 10) - 1 do
    local lane = LANE_OF_TURN[(is.turn + at) % 10 + 1]
    turns[lane] = turns[lane] + 1
  end
  if limit > 10 then
    turns = {floor(limit * 0.6), floor(limit * 0.3), floor(limit * 0.1)}
  end
  for lane = 1, 3 do
    serve(lane, turns[lane])
  end
  for lane = 1, 3 do
    serve(lane, limit - taken)
  end
  is.turn = (is.turn + taken) % 10
  if taken > 0 then
    is.next = fence
    in_parts('HSET', RECORD, records)
    in_parts('ZADD', LEASES, leases)
  end
  return answer
end
