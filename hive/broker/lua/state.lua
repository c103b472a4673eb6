-- A queue's own state: read at once by `open`, and written at the end where it changed, the last fence among it. So
-- nothing that was given may be told to anybody before: a script that goes wrong in between gives the same fence again.
--
-- What changes with most calls stands in one field: to read and write each by itself took as long as all the rest.
local TOLD = {'slots', 'paused', 'weighted', 'next', 'limit', 'waiters', 'counts'}
local COUNTS, COUNTED = '>dddddddddddd', {'asleep', 'turn', 'seq', 'w1', 'n1', 'c1', 'w2', 'n2', 'c2', 'w3', 'n3', 'c3'}
local WAITER, MOST_WAITERS = 32, 16
local was, is -- what stood there, and what is to; see call.lua

local function sane(number, default)
  return number and number >= 0 and number <= 2 ^ 53 and number or default
end

-- The processes that wait, but for one.
local function without(waiters, owner)
  local others = ''
  for at = 1, #waiters, WAITER do
    if sub(waiters, at, at + 15) ~= owner then
      others = others .. sub(waiters, at, at + WAITER - 1)
    end
  end
  return others
end

local function open()
  local told = call('HMGET', STATE, unpack(TOLD))
  is.slots, is.paused = max(1, sane(tonumber(told[1]), 24)), sane(tonumber(told[2]), 0)
  -- A last fence that cannot be read is beyond every block: nothing is given before another block is reserved.
  is.weighted, is.next, is.limit = sane(tonumber(told[3]), 0), sane(tonumber(told[4]), 2 ^ 53), sane(tonumber(told[5]), 0)
  is.waiters, is.counts = told[6] or '', told[7] or ''
  was.next, was.waiters = is.next, is.waiters
  if #is.waiters % WAITER ~= 0 then
    is.waiters = ''
  end
  local counts = #is.counts == 8 * #COUNTED and {unpack_bytes(COUNTS, is.counts)}
  if not counts then
    -- A new queue, or one whose counts were lost. Places go on above all that were given: in microseconds, since
    -- no queue takes one message in each of them.
    counts = {1, 0, now_ms() * 1000}
  end
  for at, name in ipairs(COUNTED) do
    is[name] = sane(counts[at], 0)
  end
end

local function write_state()
  local counts = pack(COUNTS, is.asleep, is.turn, is.seq, is.w1, is.n1, is.c1, is.w2, is.n2, is.c2, is.w3, is.n3, is.c3)
  local changed = {}
  if counts ~= is.counts then
    changed[1], changed[2], is.counts = 'counts', counts, counts
  end
  if is.next ~= was.next then
    changed[#changed + 1], changed[#changed + 2] = 'next', int(is.next)
  end
  if is.waiters ~= was.waiters then
    changed[#changed + 1], changed[#changed + 2] = 'waiters', is.waiters
  end
  if #changed > 0 then
    call('HSET', STATE, unpack(changed))
  end
end
