-- Gives messages to one process, higher lanes first, and promotes what is due before.
-- KEYS    see record.lua
-- ARGV    owner, limit, lease in ms
-- RETURNS {0}: the block of fences is used up or lost, reserve another one; else {1, how many were given up (their dead
--         letters want to be written), then for each message eight: id, lane (1-3), entry, wire, fence, attempt,
--         redelivered (0 or 1), published at (ms)}
local owner, limit, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local block = redis.call('HMGET', FENCE, 'next', 'limit')
if not block[1] or tonumber(block[1]) + limit > tonumber(block[2]) then
  return {0}
end
local fence = tonumber(block[1])
local now = now_ms()
local lease_end = int(now + lease)
promote(now, 500)

local function read(lane, count)
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', count, 'STREAMS', LANES[lane], '>')
  if type(reply) == 'table' and reply.err then
    -- A new queue, or a wiped Redis. Groups begin at 0, so nothing that was sent before them is missed.
    for at = 1, 3 do
      redis.pcall('XGROUP', 'CREATE', LANES[at], GROUP, '0', 'MKSTREAM')
    end
    reply = redis.call('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', count, 'STREAMS', LANES[lane], '>')
  end
  return reply and reply[1] and reply[1][2] or {}
end

local answer = {1, 0}
local taken, staged = 0, 0
for lane = 1, 3 do
  while taken < limit do
    local entries = read(lane, limit - taken)
    if #entries == 0 then
      break
    end
    for _, found in ipairs(entries) do
      local entry, fields = found[1], found[2]
      local id, wire = fields[2], fields[4]
      local r = {}
      if fields[1] == 'i' and fields[3] == 'm' then
        r = redis.call('HMGET', RECORD .. id, 's', 'e', 'x', 'k', 'a', 'g', 'p')
        if not r[1] and #id == 32 then
          -- An entry without a record was put here by somebody else: take it as it is.
          r = {'w', entry, false, false, false, false, int(now)}
          redis.call('HSET', RECORD .. id, 'l', lane, 'e', entry, 'p', int(now))
        end
      end
      if r[1] ~= 'w' or r[2] ~= entry then
        stage('', lane, entry, table.concat(fields, '\n'), 'unparsable', 'unparsable',
          'an entry that is no message', 0)
        staged = staged + 1
      elseif r[3] and tonumber(r[3]) <= now then
        redis.call('HINCRBY', COUNTS, 'expired', 1)
        drop_entry(lane, entry)
        forget(id, r[4])
      else
        fence = fence + 1
        local attempt = (tonumber(r[5]) or 0) + 1
        redis.call('HSET', RECORD .. id, 's', 'r', 'o', owner, 'f', int(fence), 'a', attempt)
        redis.call('ZADD', LEASES, lease_end, id)
        local at = #answer
        answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = id, lane, entry, wire
        answer[at + 5], answer[at + 6], answer[at + 7], answer[at + 8] = int(fence), attempt, r[6] and 1 or 0, r[7]
        taken = taken + 1
      end
    end
  end
end
if taken > 0 then
  redis.call('HSET', FENCE, 'next', int(fence))
end
answer[2] = staged
return answer
