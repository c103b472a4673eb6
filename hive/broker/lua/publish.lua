-- Accepts messages. A message that is known already is left alone, so it may be run again.
-- KEYS    see record.lua
-- ARGV    1 to wake consumers or 0, how many messages may wait in the queue or '', how many more messages of the same
--         call follow in later scripts; then for each message five: id, delay in ms, expiry in ms or 0, what to do if
--         its key runs (rerun, drop, or `refuse`: change nothing and name its holder), record
-- RETURNS for each message: '' when accepted, or the id that holds its key; or the number that waits if there would be
--         too many, and nothing is changed
local now = now_ms()
local ids = {}
for at = 4, #ARGV, 5 do
  ids[#ids + 1] = ARGV[at]
end
local known = call('HMGET', RECORD, unpack(ids))

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
      local r = parse(ARGV[3 + at * 5])
      local key = r and r.key or ''
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
local answers, records, kinds, made = {}, {}, {}, {}
local came = false
for at, id in ipairs(ids) do
  local from = at * 5 - 1
  local delay, expiry, meanwhile, record = tonumber(ARGV[from + 1]), tonumber(ARGV[from + 2]), ARGV[from + 3], ARGV[from + 4]
  local good, _, lane, _, _, _, _, _, _, _, _, _, _, cost, _, _, tenant, key, resource, task =
    pcall(unpack_bytes, FORMAT, record)
  local holder
  if known[at] or made[id] then
    holder = id
  elseif key ~= '' then
    local other, its, r = holder_of(key)
    if other and made[other] then
      holder = other
    elseif r and r.key == key then
      holder = other
      if r.state ~= 'r' and r.expires > 0 and r.expires <= now then
        -- It waited too long and would only be dropped: this one takes its place.
        call('HINCRBY', STATE, 'expired', 1)
        withdraw(other, r)
        forget(other, r)
        call('HDEL', RECORD, other)
        holder = nil
      elseif r.state == 'r' and meanwhile == 'rerun' then
        flag_record(other, its, RERUN)
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
    local state, entry, place = 'w', '', 0
    if delay > 0 then
      state = 'd'
      call('ZADD', LATER, int(now + delay), id)
    else
      came = true
      place = next_place()
      if resource ~= '' and set_aside(id, {resource = resource, place = place}) then
        state = 'b'
      elseif room(lane, tenant) > 0 and not is_queued(lane, tenant) then
        entry = call('XADD', LANES[lane], '*', 'i', id)
        enter(lane, tenant, cost)
      else
        local r = {lane = lane, tenant = tenant, place = place}
        line_up(id, r)
        state = 'l'
      end
    end
    records[#records + 1] = id
    records[#records + 1] = state .. sub(record, 2, HEAD)
      .. pack('>I8I8I8I8', place, now, expiry > 0 and now + expiry or 0, now)
      .. sub(record, HEAD + 33, FIXED) .. char(#entry) .. entry .. sub(record, FIXED + 2)
    local kind = tenant .. ':' .. task
    local its = kinds[kind]
    if not its then
      its = {}
      kinds[kind] = its
    end
    its[#its + 1] = id
    answers[at] = ''
  end
end
in_parts('HSET', RECORD, records)
local names = {}
for kind, its in pairs(kinds) do
  names[#names + 1] = 0
  names[#names + 1] = kind
  in_parts('SADD', KIND .. kind, its)
end
in_parts('ZADD', KINDS, names)
if came and ARGV[1] == '1' then
  wake()
end
close(now)
return answers
