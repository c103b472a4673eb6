-- Gives up keys of the wrong type, which somebody else must have written: no script could get past them.
-- KEYS    the queue, see record.lua
-- ARGV    for each other key of the queue two: its name, the type it must have
-- RETURNS how many there were
local TYPES = {'stream', 'stream', 'stream', 'zset', 'zset', 'zset', 'zset', 'zset', 'stream', 'stream', 'hash', 'hash',
  'hash', 'hash', 'hash', 'hash', 'hash', 'zset', 'hash', 'zset'}
local wrong, letters = 0, {}
local function look_at(key, expected)
  local found = call('TYPE', key).ok
  if found ~= 'none' and found ~= expected then
    wrong = wrong + 1
    letters[#letters + 1] = {key, found, found == 'string' and call('GETRANGE', key, 0, 65535) or ''}
    call('DEL', key)
  end
end
for at, expected in ipairs(TYPES) do
  look_at(PLACES[at], expected)
end
for at = 1, #ARGV, 2 do
  look_at(ARGV[at], ARGV[at + 1])
end
for _, each in ipairs(letters) do
  reject('', 2, '', each[3], 'key ' .. string.match(each[1], '[^}]*$') .. ' was a ' .. each[2])
end
return wrong
