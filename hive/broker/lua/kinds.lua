-- Lists of which tenants and tasks there are messages, a page at a time.
-- KEYS    the queue, see record.lua
-- ARGV    the last one seen or '', tenant ('' for system work) or '*' for any, task or '*' for any, the most to look at
-- RETURNS the last one looked at or '' at the end, then those that fit, as tenant:task
local from, tenant, task, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local low = from ~= '' and '(' .. from or tenant ~= '*' and '[' .. tenant .. ':' or '-'
local high = tenant ~= '*' and '(' .. tenant .. ';' or '+'
local found = call('ZRANGEBYLEX', KINDS, low, high, 'LIMIT', 0, most)
local answer = {#found == most and found[most] or ''}
for _, kind in ipairs(found) do
  local its_tenant, its_task = string.match(kind, '^([^:]*):(.*)$')
  if its_tenant and (tenant == '*' or its_tenant == tenant) and (task == '*' or its_task == task) then
    answer[#answer + 1] = kind
  end
end
return answer
