-- Asks how many messages of the same tenant and lane are served before one that waits.
-- KEYS    the queue, see record.lua
-- ARGV    id, the most to count
-- RETURNS how many, or -1 when it does not wait
local id, most = ARGV[1], tonumber(ARGV[2])
local r = parse(call('HGET', RECORD, id))
if not r or r.state == 'r' or r.state == 'd' then
  return -1
end
local before = 0
local to = r.state == 'w' and '(' .. r.entry or '+'
local from = '-'
while before < most do
  local entries = call('XRANGE', LANES[r.lane], from, to, 'COUNT', 500)
  local ids = {}
  for at, found in ipairs(entries) do
    ids[at] = found[2][2] or ''
  end
  if #ids == 0 then
    break
  end
  from = '(' .. entries[#entries][1]
  for _, record in ipairs(call('HMGET', RECORD, unpack(ids))) do
    local other = parse(record)
    if other and other.state == 'w' and other.tenant == r.tenant then
      before = before + 1
    end
  end
end
if r.state == 'l' then
  before = before + (call('ZRANK', LINE .. r.lane .. r.tenant, id) or 0)
elseif r.state == 'b' then
  before = before + (call('ZRANK', BLOCKED .. r.resource, id) or 0)
end
return min(before, most)
