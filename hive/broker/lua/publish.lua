-- Accepts messages. A message that is known already is left alone, so it may be run again.
-- KEYS    see record.lua
-- ARGV    1 to wake consumers, else 0; for each message nine: id, wire, lane (1-3), tenant or '', key or '', what to do if the key runs (rerun,
--         drop, or `refuse`: change nothing and name its holder), delay in ms, expiry in ms or '', max attempts
-- RETURNS for each message: '' when accepted, or the id that holds its key
local now = now_ms()
local answers = {}
local added = 0
for at = 2, #ARGV, 9 do
  local id, wire, lane, tenant, key = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  local meanwhile, delay, expiry, max = ARGV[at + 5], tonumber(ARGV[at + 6]), ARGV[at + 7], ARGV[at + 8]
  local record = RECORD .. id
  local holder = nil
  if redis.call('EXISTS', record) == 1 then
    holder = id
  elseif key ~= '' then
    holder = redis.call('GET', KEY .. key)
    if holder then
      local r = redis.call('HMGET', RECORD .. holder, 's', 'x', 'l', 'e')
      if not r[1] then
        holder = nil
      elseif r[1] ~= 'r' and r[2] and tonumber(r[2]) <= now then
        -- It waited too long and would only be dropped: this one takes its place.
        redis.call('HINCRBY', COUNTS, 'expired', 1)
        redis.call('ZREM', LATER, holder)
        if r[1] == 'w' then
          redis.call('XDEL', LANES[tonumber(r[3])], r[4])
        end
        redis.call('DEL', RECORD .. holder)
        holder = nil
      elseif r[1] == 'r' and meanwhile == 'rerun' then
        redis.call('HSET', RECORD .. holder, 'v', 1)
      end
    end
  end
  if holder then
    answers[#answers + 1] = holder == id and '' or holder
  else
    local fields = {'HSET', record, 'l', lane, 'p', int(now)}
    if tenant ~= '' then
      fields[#fields + 1] = 't'
      fields[#fields + 1] = tenant
    end
    if key ~= '' then
      redis.call('SET', KEY .. key, id)
      fields[#fields + 1] = 'k'
      fields[#fields + 1] = key
    end
    if max ~= '4' then
      fields[#fields + 1] = 'n'
      fields[#fields + 1] = max
    end
    if expiry ~= '' then
      fields[#fields + 1] = 'x'
      fields[#fields + 1] = int(now + tonumber(expiry))
    end
    if delay > 0 then
      fields[#fields + 1] = 's'
      fields[#fields + 1] = 'd'
      fields[#fields + 1] = 'm'
      fields[#fields + 1] = wire
      redis.call('ZADD', LATER, int(now + delay), id)
    else
      fields[#fields + 1] = 's'
      fields[#fields + 1] = 'w'
      fields[#fields + 1] = 'e'
      fields[#fields + 1] = redis.call('XADD', LANES[lane], '*', 'i', id, 'm', wire)
      added = added + 1
    end
    redis.call(unpack(fields))
    answers[#answers + 1] = ''
  end
end
if ARGV[1] == '1' then
  wake_if_was_empty(added)
end
return answers
