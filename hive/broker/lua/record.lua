-- What all scripts of a stream queue share; it is put before each of them.
--
-- KEYS 1-3 lane:0, lane:1, lane:2   the lines: streams of entries {i = id, m = wire}, read by the group `hive`
--      4   later     sorted set: id -> when it is due (ms)
--      5   leases    sorted set: id -> when its lease ends (ms); exactly what runs
--      6   dead      stream: what was given up and waits to be written to Postgres
--      7   wake      stream of one entry: changes when an empty queue has something to claim again
--      8   fence     hash: `next` and `limit` of the block of fences this queue may use
--      9   counts    hash: `expired`
--      10  record:   prefix of a hash for each message, named by its id
--      11  key:      prefix of a string for each dedup key: the id of its one live holder
-- All carry the same hash tag, so what is made from the prefixes lies in the same slot.
--
-- A record's fields (short, since each message has them; the wire format stands in the entry, so that a record
-- stays a small listpack):
--   s state: w waiting, d delayed, r running     l lane 1-3     e its entry      m wire, only while delayed
--   t tenant    n max attempts if not 4    k dedup key    x expires at    p published at   q in line since
--   o owner   f fence   a attempts begun   c child crashes   h hive crashes   b started   g redelivered
--   v run again afterwards   z cancellation asked for   stage, done, total
local LANES = {KEYS[1], KEYS[2], KEYS[3]}
local LATER, LEASES, DEAD, WAKE, FENCE, COUNTS = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local RECORD, KEY = KEYS[10], KEYS[11]
local GROUP = 'hive'

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A whole number as text: Lua would print large ones with an exponent.
local function int(number)
  return string.format('%.0f', number)
end

-- How many messages stand in line and were given to nobody.
local function waiting()
  local count = 0
  for at = 1, 3 do
    local length = redis.call('XLEN', LANES[at])
    if length > 0 then
      local pending = redis.pcall('XPENDING', LANES[at], GROUP)
      if pending.err then
        count = count + length
      else
        count = count + math.max(0, length - pending[1])
      end
    end
  end
  return count
end

-- Called after messages came into line: wakes those who found the line empty. Whoever saw it non-empty claims
-- again by himself.
local function wake_if_was_empty(added)
  if added > 0 and waiting() <= added then
    redis.call('XADD', WAKE, 'MAXLEN', 1, '*', 'w', 1)
  end
end

local function release_key(key, id)
  if key and redis.call('GET', KEY .. key) == id then
    redis.call('DEL', KEY .. key)
  end
end

-- A message's end: its record and its key go. Its entry and its lease are the caller's.
local function forget(id, key)
  redis.call('DEL', RECORD .. id)
  release_key(key, id)
end

-- The wire format of a message whose entry is known.
local function wire_of(lane, entry)
  local found = redis.call('XRANGE', LANES[lane], entry, entry)
  if found[1] and found[1][2][3] == 'm' then
    return found[1][2][4]
  end
  return nil
end

local function drop_entry(lane, entry)
  redis.call('XACK', LANES[lane], GROUP, entry)
  redis.call('XDEL', LANES[lane], entry)
end

-- Puts a message at the end of its line. Its old entry must be gone already.
local function line_up(id, lane, wire, now)
  local entry = redis.call('XADD', LANES[lane], '*', 'i', id, 'm', wire)
  redis.call('HSET', RECORD .. id, 's', 'w', 'e', entry, 'q', int(now))
end

-- Notes that a message is given up. Its entry stays pending until Postgres has the dead letter (`bury`), and
-- any sweep finishes that if this process does not.
local function stage(id, lane, entry, wire, kind, code, summary, attempts)
  redis.call('XADD', DEAD, '*', 'i', id, 'l', lane, 'e', entry, 'm', string.sub(wire, 1, 131072), 'kind', kind,
    'code', code, 'summary', summary, 'a', attempts)
end

-- Moves what is due into line; returns how many.
local function promote(now, limit)
  local due = redis.call('ZRANGEBYSCORE', LATER, '-inf', now, 'LIMIT', 0, limit)
  local moved = 0
  for _, id in ipairs(due) do
    local r = redis.call('HMGET', RECORD .. id, 's', 'l', 'm', 'x', 'k')
    if r[1] == 'd' then
      if r[4] and tonumber(r[4]) <= now then
        redis.call('HINCRBY', COUNTS, 'expired', 1)
        forget(id, r[5])
      else
        line_up(id, tonumber(r[2]), r[3], now)
        redis.call('HDEL', RECORD .. id, 'm')
        moved = moved + 1
      end
    end
    redis.call('ZREM', LATER, id)
  end
  wake_if_was_empty(moved)
  return moved
end
