-- Records how far a running message is, and resets its crash budgets.
-- KEYS    see record.lua
-- ARGV    id, fence, owner, stage, done or '', total or ''
-- RETURNS 1, or 0 if the fence no longer holds
local record = RECORD .. ARGV[1]
local r = redis.call('HMGET', record, 's', 'f', 'o')
if r[1] ~= 'r' or r[2] ~= ARGV[2] or r[3] ~= ARGV[3] then
  return 0
end
redis.call('HSET', record, 'stage', ARGV[4], 'done', ARGV[5], 'total', ARGV[6])
redis.call('HDEL', record, 'c', 'h')
return 1
