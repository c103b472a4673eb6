-- Accepts messages. A message that is known already is left alone, so it may be run again.
-- KEYS    the queue, see record.lua
-- ARGV    1 to wake consumers or 0, how many messages may wait in the queue or '', how many more messages of the same
--         call follow in later scripts; then for each message five: id, delay in ms, expiry in ms or 0, what to do if
--         its key runs (rerun, drop, or `refuse`: change nothing and name its holder), record
-- RETURNS for each message: '' when accepted, or the id that holds its key; or the number that waits if there would be
--         too many, and nothing is changed
local time = now_ms()
now = time
local ids = {}
for at = 4, #ARGV, 5 do
  ids[#ids + 1] = ARGV[at]
end
local known = call('HMGET', RECORD, unpack(ids))

local function cost_of_record(record)
  local cost = sub(record, COST, COST + 3)
  return cost == ONE and 1 or (unpack_bytes('>I4', cost))
end

local function holder_of(key)
  local holder = call('HGET', HOLDERS, key)
  local record = holder and call('HGET', RECORD, holder)
  return holder, record, record and parse(record)
end

local most = tonumber(ARGV[2])
if most then
  local waiting = unserved()
  if waiting + #ids + tonumber(ARGV[3]) > most then
    local new, seen = tonumber(ARGV[3]), {}
    for at, id in ipairs(ids) do
      local key = identity(ARGV[3 + at * 5]).key
      if not known[at] and (key == '' or not seen[key] and not call('HGET', HOLDERS, key)) then
        new = new + 1
        seen[key] = true
      end
    end
    if new > 0 and waiting + new > most then
      return waiting
    end
  end
end

open()
local answers, records, kinds, made, lines, identity_of, names = {}, {}, {}, {}, {}, {}, {}
local came = false
for at in ipairs(ids) do
  local record = ARGV[3 + at * 5]
  local its = identity(record)
  identity_of[at] = its
  names[its.names[byte(record, 2)]] = true
end
if #ids > 1 then
  prefetch(names)
end

-- A lone message is given at once, with the wake-up, to the last that found nothing a moment ago: it need not ask again.
-- Nothing has come into a window or line since then, or nobody would stand there as waiter.
local given, lease
local function somebody_waits()
  if is.paused == 0 and #ARGV[8] <= 8192 and is.next < is.limit then
    while #is.waiters > 0 and not given do
      local ends, its_lease = unpack_bytes('>I8I8', is.waiters, #is.waiters - 15)
      if ends >= now then
        given, lease = sub(is.waiters, -WAITER, -17), its_lease
      end
      is.waiters = sub(is.waiters, 1, -WAITER - 1)
    end
  end
  return given
end

local lone = #ids == 1 and ARGV[1] == '1'
local unexpiring, written = pack('>I8I8I8', now, 0, now), 0
for at, id in ipairs(ids) do
  local from = at * 5 - 1
  local delay, expiry, meanwhile, record = ARGV[from + 1], ARGV[from + 2], ARGV[from + 3], ARGV[from + 4]
  local lane, its = byte(record, 2), identity_of[at]
  local key, resource, tenant = its.key, its.resource, its.tenant
  local holder
  if known[at] or made[id] then
    holder = id
  elseif key ~= '' then
    local other, old, r = holder_of(key)
    if other and made[other] then
      holder = other
    elseif r and r.key == key then
      holder = other
      if r.state ~= 'r' and r.expires > 0 and r.expires <= now then
        -- It waited too long and would only be dropped: this one takes its place.
        withdraw(other, r)
        expire(other, r)
        call('HDEL', RECORD, other)
        holder = nil
      elseif r.state == 'r' and meanwhile == 'rerun' then
        flag_record(other, old, RERUN)
      end
    end
  end
  if holder then
    answers[at] = holder == id and '' or holder
  else
    made[id] = true
    if key ~= '' then
      call('HSET', HOLDERS, key, id)
    end
    local state, entry, place = 'w', nil, 0
    if delay ~= '0' then
      state = 'd'
      call('ZADD', LATER, now + tonumber(delay), id)
    else
      came = true
      place = next_place()
      if resource ~= '' and set_aside(id, {resource = resource, place = place}) then
        state = 'b'
      elseif lone and somebody_waits() then
        is.next, state = is.next + 1, 'r'
        record = sub(record, 1, 2) .. pack('>I8', is.next) .. given .. '\0\1' .. sub(record, FLAGS - 2)
        if resource ~= '' then
          call('HSET', RESOURCES, resource, id)
        end
        enter(lane, tenant, 1, cost_of_record(record))
      elseif not any_queued(lane) and room(lane, tenant) > 0 then
        entry = slot(add_entry(lane, id))
        enter(lane, tenant, 1, cost_of_record(record))
      else
        state = 'l'
        local name = its.names[lane]
        local line = lines[name]
        if not line then
          line = {}
          lines[name] = line
          queue_up(lane, tenant)
        end
        line[#line + 1] = place
        line[#line + 1] = id
      end
    end
    local expires = expiry ~= '0' and now + tonumber(expiry) or 0
    if expires > 0 then
      call('ZADD', EXPIRIES, expires, id)
    end
    local moments = expires > 0 and pack('>I8I8I8', now, expires, now) or unexpiring
    local tail = entry and sub(record, COST, ENTRY - 1) .. entry .. sub(record, UNCHANGING) or sub(record, COST)
    records[written + 1] = id
    records[written + 2] = state .. sub(record, 2, PLACE - 1) .. pack('>I8', place) .. moments .. tail
    written = written + 2
    local of_kind = kinds[its.kind]
    if not of_kind then
      of_kind = {}
      kinds[its.kind] = of_kind
    end
    of_kind[#of_kind + 1] = id
    answers[at] = ''
  end
end
in_parts('HSET', RECORD, records)
for name, line in pairs(lines) do
  in_parts('ZADD', LINE .. name, line)
end
local members = {}
for kind, of_kind in pairs(kinds) do
  members[#members + 1] = 0
  members[#members + 1] = kind
  in_parts('SADD', KIND .. kind, of_kind)
end
in_parts('ZADD', KINDS, members)
if given then
  call('ZADD', LEASES, now + lease, ids[1])
elseif came and ARGV[1] == '1' then
  wake()
end
close()
if given then
  call('XADD', WAKE, 'MAXLEN', 256, '*', 'o', given, 'i', ids[1], 'r', records[2])
end
return answers
