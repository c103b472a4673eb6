-- What all scripts of a stream queue share, the first part; state, window, hand and call follow. Together with the
-- scripts they are one library of the server's, whose functions are made once: making them anew for each call took
-- longer than most calls do. So what is kept up here outlives a call: call.lua sets it anew at the begin of each.
--
-- A message goes through these places. Only in the window does it hold a part of its tenant's share:
--
--   publish ─▶ its tenant's line ─▶ the window: a lane's stream, waiting there or running ─▶ gone
--                     ▲                        │ retry, delay        │ its resource is taken
--                     └────── due ◀── later ◀──┘      blocked ◀──────┘
--
-- The keys, each named KEYS[1] and this:
--      1-3  lane:0-2     the windows: streams of entries {i = id}, read by the group `hive`. A foreign writer adds
--                        entries {i = id in hex, m = wire format}
--      4-6  queued:0-2   sorted sets: tenants with a line in this lane -> whose turn it is
--      7    later        sorted set: id -> when it is due (ms)
--      8    leases       sorted set: id -> when its lease ends (ms); exactly what runs
--      9    dead         stream: what was given up and waits to be written to Postgres
--      10   wake         stream, short: an entry {w} when there is something to claim for those who found nothing, or
--                        {o = owner, i = id, r = record} when it was given to one of them
--      11   state        hash: `slots` that live; `next` and `limit`: the block of fences; `paused`, `weighted`;
--                        `waiters`: processes that found nothing, the last at the end: 16 bytes, until when each waits
--                        and its lease (8 each);
--                        `counts`: see state.lua; `expired`, `audit`, `recount`
--      12   record       hash: id -> record, see below
--      13   keys         hash: dedup key -> the id of its one live holder
--      14   standing     hash: lane and tenant -> the cost of what stands in the window
--      15   slots        hash: process -> its live slots and until when that counts (ms)
--      16   weights      hash: tenant -> weight, where it is not 1
--      17   resources    hash: resource -> the running message that has it
--      18   kinds        sorted set, all scores 0: tenant and task, of which there is or was a message
--      19   progress     hash: id -> how far a running message is
--      20   expiries    sorted set: id -> when it expires (ms), of what may and has not run since
--      21   line:        prefix of a sorted set for each lane and tenant: id -> its place
--      22   kind:        prefix of a set for each tenant and task: the ids of its messages
--      23   blocked:     prefix of a sorted set for each resource: id -> its place
-- All carry the hash tag of KEYS[1], so all lie in its slot: of a script's 23 keys one is told to the server, since it
-- takes longer to read the others' names than to run some scripts.
--
-- Ids are 16 bytes. A record is packed (a hash of its own for each message took three times as long):
--   state: w in the window, l in a line, d delayed, b blocked, r running;  lane 1-3;  fence, owner of the last claim
--   attempt: attempts begun;  crashes of children;  deaths of hive;  flags
--   place in its line;  published at;  expires at or 0;  in line since;  cost;  max attempts
--   traits: 1 may expire, 2 has a dedup key, 4 has a resource;  where its wire format begins
--   entry in the stream or '', in 41 bytes
-- and what never changes: tenant or '', dedup key or '', resource or '', task, wire format.
-- What most messages are (no traits, no flags) is told by single bytes and moved by cutting the text: to unpack all of
-- it for each message took as long as everything else together.
-- What a call is about, see call.lua.
local ARGV, PLACES, LANES, QUEUED, LATER, LEASES, DEAD, WAKE, STATE, RECORD, HOLDERS, STANDING, SLOTS, WEIGHTS
local RESOURCES, KINDS, PROGRESS, EXPIRIES, LINE, KIND, BLOCKED, identities
local GROUP = 'hive'
local call, sub, byte, char = redis.call, string.sub, string.byte, string.char
local pack, unpack_bytes, floor, max, min = struct.pack, struct.unpack, math.floor, math.max, math.min

local FORMAT = '>c1BI8c16HBBBI8I8I8I8I4HBHBc41Bc0Bc0Bc0Hc0'
local FLAGS, PLACE, EXPIRES, COST, TRAITS, WIRE, ENTRY, UNCHANGING = 31, 32, 48, 64, 70, 71, 73, 115
local STARTED, REDELIVERED, RERUN, CANCEL, PROGRESSED = 1, 2, 4, 8, 16
local ONE, NOBODY, BLANK = '\0\0\0\1', string.rep('\0', 16), string.rep('\0', 41)
local W_STATE, L_STATE, R_STATE = byte('wlr', 1, 3)
local SOME = 500 -- how many are moved at a time

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

-- A whole number as text: Lua and redis.call would write some large ones with an exponent. Scores may have one.
local function int(number)
  return string.format('%.0f', number)
end

local function has(flags, flag)
  return floor(flags / flag) % 2 == 1
end

local function with(flags, flag)
  return has(flags, flag) and flags or flags + flag
end

-- An entry as it stands in a record.
local function slot(entry)
  return char(#entry) .. entry .. sub(BLANK, #entry + 1)
end

local function entry_of(record)
  return sub(record, ENTRY + 1, ENTRY + byte(record, ENTRY))
end

local function wire_of(record)
  return sub(record, byte(record, WIRE) * 256 + byte(record, WIRE + 1))
end

-- What never changes in a record but for its wire format, taken apart once for all that have it alike.
local function identity(record)
  local text = sub(record, UNCHANGING, byte(record, WIRE) * 256 + byte(record, WIRE + 1) - 1)
  local known = identities[text]
  if known == nil then
    local good, tenant, key, resource, task, rest = pcall(unpack_bytes, '>Bc0Bc0Bc0Hc0', text)
    known = good and rest == #text + 1
      and {tenant = tenant, key = key, resource = resource, task = task, kind = tenant .. ':' .. task,
        names = {1 .. tenant, 2 .. tenant, 3 .. tenant}}
    identities[text] = known
  end
  return known
end

-- A record's parts, or nothing if it is none.
local function parse(record)
  if not record or #record < UNCHANGING + 4 then
    return nil
  end
  local good, state, lane, fence, owner, attempt, crashes, deaths, flags, place, published, expires, since, cost, most,
    traits, wire, length, padded, tenant, key, resource, task, rest = pcall(unpack_bytes, FORMAT, record)
  if not good or lane < 1 or lane > 3 or cost < 1 or length > 41 or wire ~= rest
    or not string.find('wldbr', state, 1, true) then
    return nil
  end
  return {state = state, lane = lane, fence = fence, owner = owner, attempt = attempt, crashes = crashes,
    deaths = deaths, flags = flags, place = place, published = published, expires = expires, since = since,
    cost = cost, max = most, traits = traits, entry = sub(padded, 1, length), tenant = tenant, key = key,
    resource = resource, task = task, wire = wire}
end

local function pack_record(r, wire)
  return pack(FORMAT, r.state, r.lane, r.fence, r.owner, min(r.attempt, 65535), min(r.crashes, 255), min(r.deaths, 255),
    r.flags, r.place, r.published, r.expires, r.since, r.cost, r.max, r.traits,
    UNCHANGING + 5 + #r.tenant + #r.key + #r.resource + #r.task, #r.entry, r.entry .. sub(BLANK, #r.entry + 1),
    #r.tenant, r.tenant, #r.key, r.key, #r.resource, r.resource, #r.task, r.task) .. wire
end

-- Whether a message is plain: without key and resource, and not expired by now.
local function plain(record, now)
  local traits = byte(record, TRAITS)
  return traits == 0 or traits == 1 and (unpack_bytes('>I8', record, EXPIRES)) > now
end

-- Calls `command` on `key` with any number of arguments, so many at a time.
local function in_parts(command, key, arguments)
  for at = 1, #arguments, 1000 do
    call(command, key, unpack(arguments, at, min(at + 999, #arguments)))
  end
end

-- The values of any number of fields.
local function fetch(command, key, fields)
  if #fields <= 1000 then
    return #fields > 0 and call(command, key, unpack(fields)) or {}
  end
  local values = {}
  for at = 1, #fields, 1000 do
    local last = min(at + 999, #fields)
    for index, value in ipairs(call(command, key, unpack(fields, at, last))) do
      values[at + index - 1] = value
    end
  end
  return values
end

local function flag_record(id, record, flag)
  call('HSET', RECORD, id, sub(record, 1, FLAGS - 1) .. char(with(byte(record, FLAGS), flag)) .. sub(record, FLAGS + 1))
end

-- Whether a delivery is still its owner's: `fence` and `owner` as they stand in a record.
local function held(record, fence, owner)
  return record and byte(record, 1) == R_STATE and sub(record, 3, 10) == fence and sub(record, 11, 26) == owner
end

-- How many messages wait: in line, in a window, blocked or delayed.
local function unserved()
  return max(0, call('HLEN', RECORD) - call('ZCARD', LEASES))
end

-- Notes what is given up; it goes to Postgres from there.
local function stage(id, lane, entry, wire, kind, code, summary, attempts)
  call('XADD', DEAD, '*', 'i', id, 'l', lane, 'e', entry, 'm', sub(wire, 1, 131072), 'kind', kind, 'code', code,
    'summary', summary, 'a', attempts)
end

local function reject(id, lane, entry, raw, reason)
  stage(id, lane, entry, raw, 'unparsable', 'unparsable', reason, 0)
end
