-- Writes outcomes, each only if its fence and owner still hold.
-- KEYS    the queue, see record.lua
-- ARGV    owner, child crash limit, all deliveries in one text of 25 bytes each: id, fence (8 bytes), outcome (d done,
--         x cancelled, h handed back, f failed, t try again, w wait (t without a charge), c crashed); then for each
--         f, t, w and c four: delay in ms, error kind, code, summary
-- RETURNS how many were given up (their dead letters want to be written), and a text of one letter for each delivery:
--         s stale, a accepted, r to run again, p poisoned
local owner, child_limit, batch = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local now = now_ms()
local ids, count = {}, #batch / 25
for at = 1, count do
  ids[at] = sub(batch, at * 25 - 24, at * 25 - 9)
end
local records = call('HMGET', RECORD, unpack(ids))
open()
local verdicts, changed, leases, ended = {}, {}, {}, {}
local parts = {}
local staged, came, extra = 0, false, 4
for at = 1, count do
  local id, record = ids[at], records[at]
  local word = sub(batch, at * 25, at * 25)
  local delay, kind, code, summary
  if word == 'f' or word == 't' or word == 'w' or word == 'c' then
    delay, kind, code, summary = tonumber(ARGV[extra]), ARGV[extra + 1], ARGV[extra + 2], ARGV[extra + 3]
    extra = extra + 4
  end
  local verdict = 's'
  if not held(record, sub(batch, at * 25 - 8, at * 25 - 1), owner) or ended[id] then
    verdict = 's'
  elseif (word == 'd' or word == 'x') and #record > UNCHANGING and byte(record, FLAGS) < RERUN
    and byte(record, TRAITS) < 2 and gone[byte(record, 2)] and byte(record, ENTRY) <= 41 and identity(record) then
    -- By far the most: it ends, and neither key nor resource nor anybody's wish depends on it.
    local its, lane, cost = identity(record), byte(record, 2), sub(record, COST, COST + 3)
    ended[id] = true
    verdict = 'a'
    leases[#leases + 1] = id
    forgotten[#forgotten + 1] = id
    drop_entry(lane, entry_of(record))
    unkind(its.kind, id)
    if byte(record, TRAITS) == 1 then
      unexpired[#unexpired + 1] = id
    end
    local name = lane .. its.tenant
    local part = parts[name]
    if not part then
      part = {lane, its.tenant, 0, 0}
      parts[name] = part
    end
    part[3], part[4] = part[3] + 1, part[4] + (cost == ONE and 1 or unpack_bytes('>I4', cost))
  else
    local r = parse(record)
    if r then
      ended[id] = true
      verdict = 'a'
      local cancelled, after = has(r.flags, CANCEL)
      if word == 'c' and r.crashes + 1 >= child_limit then
        after, kind, verdict = 'dead', 'poison', 'p'
      elseif cancelled and (word == 'h' or word == 'c' or word == 'w' or word == 't') then
        after = 'gone'
      elseif word == 'h' then
        after = 'line'
      elseif word == 'c' or word == 'w' or word == 't' and r.attempt < r.max then
        after = 'later'
      elseif has(r.flags, RERUN) then
        after, verdict = 'line', 'r'
      elseif word == 't' then
        after, kind = 'dead', 'exhausted'
      elseif word == 'f' then
        after = 'dead'
      else
        after = 'gone'
      end
      leases[#leases + 1] = id
      drop_entry(r.lane, r.entry)
      leave(r.lane, r.tenant, 1, r.cost)
      if after == 'gone' then
        forget(id, r)
      elseif after == 'dead' then
        stage(id, r.lane, r.entry, wire_of(record), kind, code, summary, r.attempt)
        forget(id, r)
        staged = staged + 1
      else
        local wire = wire_of(record)
        r.flags = has(r.flags, PROGRESSED) and PROGRESSED or 0
        if word == 'h' or word == 'w' then
          r.attempt = r.attempt - 1
        elseif word == 'c' then
          r.attempt, r.crashes = r.attempt - 1, r.crashes + 1
        elseif verdict == 'r' then
          r.attempt, r.crashes, r.deaths, r.expires = 0, 0, 0, 0
        end
        r.attempt = max(0, r.attempt)
        if after == 'later' then
          r.state, r.entry = 'd', ''
          call('ZADD', LATER, now + delay, id)
        else
          -- What was handed back keeps its place, as the first of its line; what runs again starts anew.
          r.since = now
          if verdict == 'r' then
            r.place = next_place()
          end
          line_up(id, r)
          came = true
        end
        watch(id, r)
        changed[#changed + 1] = id
        changed[#changed + 1] = pack_record(r, wire)
      end
      if release(r.resource, id) then
        came = true
      end
    end
  end
  verdicts[at] = verdict
end
in_parts('HSET', RECORD, changed)
in_parts('ZREM', LEASES, leases)
prefetch(parts)
for _, part in pairs(parts) do
  leave(part[1], part[2], part[3], part[4])
end
if came then
  wake()
end
close()
return {staged, table.concat(verdicts)}
