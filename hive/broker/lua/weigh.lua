-- Sets the tenants' weights. The next sweep recounts the shares.
-- KEYS    the queue, see record.lua
-- ARGV    tenant and weight, for each whose weight is not 1
-- RETURNS nothing
local same = call('HLEN', WEIGHTS) * 2 == #ARGV
for at = 1, #ARGV, 2 do
  same = same and call('HGET', WEIGHTS, ARGV[at]) == ARGV[at + 1]
end
if same then
  return
end
call('DEL', WEIGHTS)
in_parts('HSET', WEIGHTS, ARGV)
call('HSET', STATE, 'weighted', #ARGV > 0 and 1 or 0, 'recount', 1)
