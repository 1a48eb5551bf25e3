-- Carries out requests one after the other, each by itself: what one does wrong harms no other.
--
-- KEYS: the states of the first request, then of the next, and so on; for a correction each state
-- is followed by its marker. All of one slot.
-- ARGV: a request each, packed: ">B B" op and the number of checks; for each check a limit,
-- ">B B I4 I7 I4 I7 I7 I4" code, flags, quota, period_us, capacity, min_interval_us,
-- max_delay_us + 1, tick_us, and ">I4" the cost; for a correction also ">I7 I4" stamp_us and the
-- actual cost. What is left is the holder.
-- Reply: an answer for each request, packed: "\1", and for each check ">B I4 i8 i8 i8 i8" allowed,
-- remaining, retry_us, reset_us, delay_us, stamp_us; or, for a change, ">B" whether anything was
-- changed. A table {0, message} is a fault: this request failed, and the others did not.
--
-- Most calls bring one check. All that such a call does not need is made later or not at all: to
-- make a function takes as long as to call it a few times.

local DECIDE = 1
local PEEK = 2
local CORRECT = 3
local FIRST_CHECK = 3
local CHECK_BYTES = 39
local ANSWER = ">BBI4i8i8i8i8"
local MOST_KNOWN = 8

local limits = REQUESTS > 1 and {}

-- Limits repeat among many requests: each is read once. script.py writes `algorithms`, an empty
-- table, and `algorithm_of` from the table of algorithms.
local function limit_of(packed_limit)
  if limits and limits[packed_limit] then return limits[packed_limit] end
  local code, flags, quota, period_us, capacity, min_interval_us, max_delay_us, tick_us =
    struct.unpack(">BBI4I7I4I7I7I4", packed_limit)
  local algorithm = algorithms[code]
  if not algorithm then
    algorithm = algorithm_of(code)
    algorithms[code] = algorithm
  end
  -- In one piece: a table that grows field by field is moved again and again.
  local limit = {
    algorithm = algorithm, flags = flags, quota = quota, period_us = period_us,
    capacity = capacity, min_interval_us = min_interval_us, max_delay_us = max_delay_us - 1,
    tick_us = tick_us,
  }
  if limits then limits[packed_limit] = limit end
  return limit
end

local handlers

-- What a request says: op, number of checks, limit, and cost or holder; or as rare.lua has it.
local function read(packed_request)
  local op, count, packed_limit, what = struct.unpack(">BBc35I4", packed_request)
  if count > 1 or op > PEEK then
    handlers = handlers or rare(limit_of)
    return op, count, handlers.read(packed_request, op, count)
  end
  local limit = limit_of(packed_limit)
  if limit.flags >= SLOTS then what = string.sub(packed_request, FIRST_CHECK + CHECK_BYTES) end
  return op, count, limit, what
end

local function decide_one(op, key, limit, what)
  local algorithm = limit.algorithm
  return struct.pack(ANSWER, 1,
    algorithm.decide(key, algorithm.load(key, what, limit), limit, now_us, what, op == DECIDE))
end

-- Most requests differ from others in their keys alone: what some say is remembered.
local known, room = REQUESTS > 1 and {}, MOST_KNOWN
local replies, next_key = REQUESTS > 1 and {}, 1
for index = 1, REQUESTS do
  local packed_request, done, reply = ARGV[index], nil, nil
  local op, count, limit, what
  local said = known and known[packed_request]
  if said then
    op, count, limit, what = said[1], said[2], said[3], said[4]
  else
    op, count, limit, what = read(packed_request)
    if known and room > 0 then
      known[packed_request], room = {op, count, limit, what}, room - 1
    end
  end
  if count == 1 and op <= PEEK then
    done, reply = pcall(decide_one, op, KEYS[next_key], limit, what)
  else
    done, reply = pcall(handlers[op], op, count, limit, what, next_key)
  end
  if not done then
    handlers = handlers or rare(limit_of)
    reply = handlers.fault(reply, op, count, limit)
  end
  -- Here tests number the replies.
  if REQUESTS == 1 then return reply end
  next_key = next_key + (op == CORRECT and 2 or 1) * count
  replies[index] = reply
end
return replies
