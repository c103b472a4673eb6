-- How a call begins: what it is about, and nothing of the call before it, which may have ended anywhere by an error.
local NAMES = {'lane:0', 'lane:1', 'lane:2', 'queued:0', 'queued:1', 'queued:2', 'later', 'leases', 'dead', 'wake', 'state',
  'record', 'keys', 'standing', 'slots', 'weights', 'resources', 'kinds', 'progress', 'expiries', 'line:', 'kind:',
  'blocked:'}
local places_of, places_known = {}, 0

-- The keys of a queue. Names are worth keeping, for as many queues as there are likely to be.
local function places(queue)
  local found = places_of[queue]
  if not found then
    found = {}
    for at, name in ipairs(NAMES) do
      found[at] = queue .. name
    end
    found.lanes, found.queued = {found[1], found[2], found[3]}, {found[4], found[5], found[6]}
    if places_known >= 1000 then
      places_of, places_known = {}, 0
    end
    places_of[queue], places_known = found, places_known + 1
  end
  return found
end

local function begin(keys, arguments)
  ARGV, PLACES = arguments, places(keys[1])
  LANES, QUEUED = PLACES.lanes, PLACES.queued
  LATER, LEASES, DEAD, WAKE, STATE, RECORD, HOLDERS, STANDING, SLOTS, WEIGHTS, RESOURCES, KINDS, PROGRESS, EXPIRIES, LINE,
    KIND, BLOCKED = unpack(PLACES, 7, 23)
  identities = {}
  was, is = {}, {}
  standing_was, standing, weights = {}, {}, {}
  queued, lined = {}, {}
  gone, forgotten, unkinds, unexpired = {{}, {}, {}}, {}, {}, {}
  owner, consumer, lease_end, fence, now, taken = nil, nil, nil, nil, nil, nil
  answer, records, leases, ours, dry = nil, nil, nil, nil, nil
end
