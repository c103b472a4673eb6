-- Writes outcomes, each only if its fence and owner still hold.
-- KEYS    see record.lua
-- ARGV    owner, child crash limit, then for each delivery: id, fence, outcome; outcomes other than `completed`,
--         `cancelled` and `released` are followed by: delay in ms, error kind, code, summary
-- RETURNS how many were given up (their dead letters want to be written), then for each delivery: stale, accepted,
--         rerun or poisoned
local owner, child_limit = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
local answer = {0}
local entries, leases, records = {{}, {}, {}}, {}, {}
local added, staged = 0, 0
local at = 3
while at <= #ARGV do
  local id, fence, outcome = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local delay, kind, code, summary
  at = at + 3
  if outcome == 'failed' or outcome == 'retrying' or outcome == 'crashed' then
    delay, kind, code, summary = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    at = at + 4
  end
  local record = RECORD .. id
  local r = redis.call('HMGET', record, 's', 'f', 'o', 'l', 'e', 'k', 'v', 'z', 'a', 'c', 'n')
  local verdict = 'stale'
  if r[1] == 'r' and r[2] == fence and r[3] == owner then
    local lane, entry, key, rerun, cancelled = tonumber(r[4]), r[5], r[6], r[7], r[8]
    local attempt, crashes = tonumber(r[9]), tonumber(r[10]) or 0
    local after
    verdict = 'accepted'
    if outcome == 'crashed' and crashes + 1 >= child_limit then
      after, kind, verdict = 'failed', 'poison', 'poisoned'
    elseif cancelled and (outcome == 'released' or outcome == 'crashed' or outcome == 'retrying') then
      after = 'gone'
    elseif outcome == 'released' then
      after = 'pending'
    elseif outcome == 'crashed' then
      after = 'retrying'
    elseif outcome == 'retrying' and attempt < (tonumber(r[11]) or 4) then
      after = 'retrying'
    elseif rerun then
      after, verdict = 'pending', 'rerun'
    elseif outcome == 'retrying' then
      after, kind = 'failed', 'exhausted'
    elseif outcome == 'failed' then
      after = 'failed'
    else
      after = 'gone'
    end
    leases[#leases + 1] = id
    if after == 'gone' then
      entries[lane][#entries[lane] + 1] = entry
      records[#records + 1] = record
      release_key(key, id)
    else
      local wire = wire_of(lane, entry) or ''
      if after == 'failed' then
        stage(id, lane, entry, wire, kind, code, summary, attempt)
        records[#records + 1] = record
        release_key(key, id)
        staged = staged + 1
      else
        drop_entry(lane, entry)
        redis.call('HDEL', record, 'o', 'b', 'v', 'z', 'g')
        if outcome == 'crashed' then
          redis.call('HSET', record, 'a', attempt - 1, 'c', crashes + 1)
        elseif outcome == 'released' then
          redis.call('HSET', record, 'a', attempt - 1)
        elseif verdict == 'rerun' then
          redis.call('HDEL', record, 'a', 'c', 'h', 'x', 'stage', 'done', 'total')
        end
        if after == 'pending' then
          line_up(id, lane, wire, now)
          added = added + 1
        else
          redis.call('HSET', record, 's', 'd', 'm', wire)
          redis.call('ZADD', LATER, int(now + delay), id)
        end
      end
    end
  end
  answer[#answer + 1] = verdict
end
for lane = 1, 3 do
  if #entries[lane] > 0 then
    redis.call('XACK', LANES[lane], GROUP, unpack(entries[lane]))
    redis.call('XDEL', LANES[lane], unpack(entries[lane]))
  end
end
if #leases > 0 then
  redis.call('ZREM', LEASES, unpack(leases))
end
if #records > 0 then
  redis.call('DEL', unpack(records))
end
wake_if_was_empty(added)
answer[1] = staged
return answer
