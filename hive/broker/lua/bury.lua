-- Removes what was given up, once Postgres has its dead letter.
-- KEYS    see record.lua
-- ARGV    for each letter three: its entry in `dead`, its lane (1-3), its entry there
-- RETURNS nothing
for at = 1, #ARGV, 3 do
  redis.call('XDEL', DEAD, ARGV[at])
  drop_entry(tonumber(ARGV[at + 1]), ARGV[at + 2])
end
