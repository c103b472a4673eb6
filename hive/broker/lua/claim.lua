-- Gives messages to one process, and promotes what is due before. Lanes are served 6:3:1: of ten turns high has six,
-- normal three and low one, and a turn that a lane cannot use goes to the highest that can.
-- KEYS    see record.lua
-- ARGV    owner, owner in hex, limit, lease in ms
-- RETURNS {0}: the block of fences is used up or lost, reserve another one; else {1, 1 if dead letters want to be
--         written, ms until the next one is due or -1, the first one's fence (they rise by one), their lanes as a text
--         of digits, then a list of those that were claimed before: position from 0, attempt, 1 if its last claim ended
--         without an outcome; then for each message four: id, entry, published at (ms), wire format}
local owner, consumer, limit, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local top = call('HMGET', STATE, 'next', 'limit', 'paused')
local fence = tonumber(top[1])
if top[3] then
  call('HSET', STATE, 'asleep', 1)
  return {1, 0, -1, 0, '', {}}
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
    place = next_place(), published = now, expires = 0, since = now, cost = 1, max = 4, entry = entry, tenant = '',
    key = '', resource = '', task = ''}
  local record = pack_record(r, wire)
  call('HSET', RECORD, id, record)
  enter(lane, '', 1)
  return id, record
end

local answer = {1, 0, -1, fence + 1, '', {}}
local lanes, known = {}, {}
local records, leases, taken = {}, {}, 0
local lease_end = int(now + lease)

local function take(lane, entries)
  local ids, good = {}, {}
  for at, found in ipairs(entries) do
    local fields = found[2]
    if fields and #fields == 2 and fields[1] == 'i' and #fields[2] == 16 then
      good[#good + 1] = at
      ids[#ids + 1] = fields[2]
    end
  end
  local record_of, id_of = {}, {}
  for at = 1, #ids, 1000 do
    local last = min(at + 999, #ids)
    local part = call('HMGET', RECORD, unpack(ids, at, last))
    for index = at, last do
      record_of[good[index]], id_of[good[index]] = part[index - at + 1], ids[index]
    end
  end
  for at, found in ipairs(entries) do
    local entry, fields = found[1], found[2] or {}
    local id, record = id_of[at], record_of[at]
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
      call('HINCRBY', STATE, 'expired', 1)
      withdraw(id, r)
      forget(id, r)
    elseif r.resource ~= '' and taken_by_another(r.resource, id) then
      withdraw(id, r)
      r.state, r.entry = 'b', ''
      call('ZADD', BLOCKED .. r.resource, int(r.place), id)
      call('HSET', RECORD, id, pack_record(r, sub(record, r.rest)))
    else
      if r.resource ~= '' then
        call('HSET', RESOURCES, r.resource, id)
        ours[id] = true
      end
      fence, taken = fence + 1, taken + 1
      local attempt = r.attempt + 1
      records[#records + 1] = id
      records[#records + 1] = 'r' .. sub(record, 2, 2) .. pack('>I8c16H', fence, owner, min(attempt, 65535))
        .. sub(record, HEAD - 2)
      leases[#leases + 1] = lease_end
      leases[#leases + 1] = id
      lanes[taken] = lane
      if attempt > 1 or r.flags > 0 or r.deaths > 0 then
        known[#known + 1], known[#known + 2], known[#known + 3] = taken - 1, attempt, has(r.flags, REDELIVERED) and 1 or 0
      end
      local last = #answer
      answer[last + 1], answer[last + 2], answer[last + 3], answer[last + 4] = id, entry, r.published, sub(record, r.rest)
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
answer[5] = table.concat(lanes)
answer[6] = known
local due = call('ZRANGE', LATER, 0, 0, 'WITHSCORES')[2]
if due then
  answer[3] = min(max(0, (tonumber(due) or now) - now), 2 ^ 40)
end
close(now)
return answer
