-- Counts what each tenant has, a page at a time in the order of their ids; system work ('') comes first.
-- KEYS    the queue, see record.lua
-- ARGV    the tenant that ended the last page or '*' for the first page, the most tenants
-- RETURNS for each tenant four: its id, waiting, running, the oldest waiting one's age in ms or -1
local after, most = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
local seen, page = {}, {}
local function note(tenant)
  if not seen[tenant] and (after == '*' or tenant > after) then
    seen[tenant] = true
    page[#page + 1] = tenant
  end
end
for _, name in ipairs(call('HKEYS', STANDING)) do
  note(sub(name, 2))
end
for lane = 1, 3 do
  for _, tenant in ipairs(call('ZRANGE', QUEUED[lane], 0, -1)) do
    note(tenant)
  end
end
table.sort(page)
local counts = {}
for at = 1, min(most, #page) do
  counts[page[at]] = {0, 0, nil}
end
local function consider(found, r)
  if not found[3] or r.since < found[3] then
    found[3] = r.since
  end
end
for lane = 1, 3 do
  local from = '-'
  while true do
    local entries = call('XRANGE', LANES[lane], from, '+', 'COUNT', 1000)
    local ids = {}
    for at, found in ipairs(entries) do
      ids[at] = found[2][2] or ''
    end
    if #ids == 0 then
      break
    end
    from = '(' .. entries[#entries][1]
    for _, record in ipairs(call('HMGET', RECORD, unpack(ids))) do
      local r = parse(record)
      local mine = r and counts[r.tenant]
      if mine and r.state == 'r' then
        mine[2] = mine[2] + 1
      elseif mine and r.state == 'w' then
        mine[1] = mine[1] + 1
        consider(mine, r)
      end
    end
  end
  for tenant, mine in pairs(counts) do
    local line = LINE .. lane .. tenant
    mine[1] = mine[1] + call('ZCARD', line)
    local first = call('ZRANGE', line, 0, 0)[1]
    local r = first and parse(call('HGET', RECORD, first))
    if r then
      consider(mine, r)
    end
  end
end
for _, resource in ipairs(call('HKEYS', RESOURCES)) do
  local mine = counts[string.match(resource, '^([^:]*):') or '?']
  if mine then
    mine[1] = mine[1] + call('ZCARD', BLOCKED .. resource)
    local first = call('ZRANGE', BLOCKED .. resource, 0, 0)[1]
    local r = first and parse(call('HGET', RECORD, first))
    if r then
      consider(mine, r)
    end
  end
end
local answer = {}
for at = 1, min(most, #page) do
  local mine = counts[page[at]]
  if mine[1] + mine[2] > 0 then
    local last = #answer
    answer[last + 1], answer[last + 2], answer[last + 3] = page[at], mine[1], mine[2]
    answer[last + 4] = mine[3] and mine[1] > 0 and max(0, now - mine[3]) or -1
  end
end
return answer
