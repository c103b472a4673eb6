-- Gives messages to one process, and promotes what is due before. Lanes are served 6:3:1: of ten turns high has six,
-- normal three and low one, and a turn that a lane cannot use goes to the highest that can.
-- KEYS    see record.lua
-- ARGV    owner, owner in hex, limit, lease in ms
-- RETURNS {0}: the block of fences is used up or lost, reserve another one; else {1, 1 if dead letters want to be
--         written, ms until the next one is due or -1, then for each message two: id, record}
local owner, consumer, limit, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local top = call('HMGET', STATE, 'next', 'limit', 'paused')
local fence = tonumber(top[1])
if top[3] then
  call('HSET', STATE, 'asleep', 1)
  return {1, 0, -1}
end
if not fence or not (fence + limit <= (tonumber(top[2]) or 0)) or fence < 0 or fence > 2 ^ 53 then
  return {0}
end
open()
promote(now, SOME)

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
local ours = {}
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

local answer = {1, 0, -1}
local records, leases, taken = {}, {}, 0
local lease_end = now + lease
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
      and byte(record, TRAITS) == 0 and sub(record, ENTRY + 1, ENTRY + #entry) == entry
      and byte(record, ENTRY) == #entry and sub(record, FLAGS - 4, FLAGS) == FRESH then
      give(id, record, '\0\1')
    else
      take_other(lane, found, id, record)
    end
  end
end

local dry = {}
local function serve(lane, count)
  local until_taken = taken + count
  while taken < until_taken and not dry[lane] do
    local wanted = until_taken - taken
    local entries = read(lane, wanted)
    take(lane, entries)
    if taken < until_taken and #entries < wanted and draw(lane, until_taken - taken, now) == 0 then
      dry[lane] = true
    end
  end
end

local LANE_OF_TURN = {1, 2, 1, 1, 3, 1, 2, 1, 2, 1}
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
  call('HSET', STATE, 'next', int(fence))
  in_parts('HSET', RECORD, records)
  in_parts('ZADD', LEASES, leases)
else
  is.asleep = 1
end
local due = call('ZRANGE', LATER, 0, 0, 'WITHSCORES')[2]
if due then
  answer[3] = min(max(0, (tonumber(due) or now) - now), 2 ^ 40)
end
close(now)
return answer
