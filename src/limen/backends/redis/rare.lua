-- What a call seldom has: requests of several checks, changes, and faults. See driver.lua.
--
-- Each handler takes what the request says, as it was read, and the place in KEYS of its first check;
-- it returns the reply.

local DECIDE = 1
local PEEK = 2
local CORRECT = 3
local RENEW = 4
local FIRST_CHECK = 3
local CHECK_BYTES = 39
local CORRECTION_BYTES = 11
local READING = ">BI4i8i8i8i8"
local CHANGE = ">BB"

local limit_of = ...

-- The limits of all checks, and the cost of each or the holder. A change is read when it is carried
-- out.
local function read(packed_request, op, count)
  if op > PEEK then return packed_request end
  local holder = string.sub(packed_request, FIRST_CHECK + count * CHECK_BYTES)
  local limits, whats = {}, {}
  for index = 1, count do
    local packed_limit, cost =
      struct.unpack(">c35I4", packed_request, FIRST_CHECK + (index - 1) * CHECK_BYTES)
    local limit = limit_of(packed_limit)
    limits[index], whats[index] = limit, limit.flags >= SLOTS and holder or cost
  end
  return limits, whats
end

local function ask(key, state, limit, what, charge)
  return struct.pack(READING, limit.algorithm.decide(key, state, limit, now_us, what, charge))
end

local function try(key, limit, what, charge)
  local state = limit.algorithm.load(key, what, limit)
  pending = false
  local reading = ask(key, state, limit, what, charge)
  return reading, state, pending
end

-- What a shadow says that has failed: as much as one that has counted nothing.
local function unknown(limit)
  return struct.pack(READING, 1, limit.capacity, 0, 0, 0, UNCHARGED)
end

-- Of the checks of a request. The next one finds the tables made, and writes over what is in them.
local readings, states, writes = {}, {}, {}

-- Try every check without writing, then charge all of them or none. A shadow has no say, and is
-- charged if it would have admitted alone; a refusal is charged where a limit counts refusals.
local function decide(op, count, limits, whats, first_key)
  local charge, admitted, before = op == DECIDE, true, first_key - 1
  asking = true
  for index = 1, count do
    local key, limit, what = KEYS[before + index], limits[index], whats[index]
    if limit.flags % 2 == ENFORCE then
      local reading, state, write = try(key, limit, what, charge)
      readings[index], states[index], writes[index] = reading, state, write
      admitted = admitted and string.byte(reading) == 1
    else
      local done, reading, state, write = pcall(try, key, limit, what, charge)
      readings[index], states[index], writes[index] = done and reading, state, write
    end
  end
  asking = false
  for index = 1, count do
    local reading, limit, write = readings[index], limits[index], writes[index]
    if not reading then
      readings[index] = unknown(limit)
    elseif charge and not admitted
      and (string.byte(reading) == 1 or limit.flags % 2 ~= ENFORCE) then
      -- Others refused: what it says of a charge does not hold.
      readings[index] = ask(KEYS[before + index], states[index], limit, whats[index], false)
    elseif write then
      write[1](unpack(write, 2, 9))
    end
  end
  return "\1" .. table.concat(readings, "", 1, count)
end

-- Make a charge what it should have been, once: the marker lives as long as the charge may count.
local function correct_one(
  key, marker, state, limit, corrections, left_us, cost, stamp_us, actual_cost
)
  if redis.call("EXISTS", marker) == 1 then return 0 end
  local changed = 1
  local more = actual_cost - cost
  if more > 0 then
    corrections.debit(key, state, limit, now_us, more)
    left_us = corrections.left_us(limit.algorithm.load(key, cost, limit), limit, now_us)
  elseif corrections.refund(key, state, limit, now_us, -more, stamp_us) == 0 then
    changed = 0
  end
  if left_us > 0 then redis.call("SET", marker, "", "PX", ttl_ms(left_us)) end
  return changed
end

local function correct(op, count, packed_request, _, first_key)
  local checks, changed = {}, 0
  for index = 1, count do
    local packed_limit, cost, stamp_us, actual_cost = struct.unpack(">c35I4I7I4", packed_request,
      FIRST_CHECK + (index - 1) * (CHECK_BYTES + CORRECTION_BYTES))
    local limit, place = limit_of(packed_limit), first_key + 2 * (index - 1)
    local key, corrections = KEYS[place], limit.algorithm.corrections()
    local state = limit.algorithm.load(key, cost, limit)
    -- All states are read, and so validated, before the first write.
    local left_us = corrections.left_us(state, limit, now_us)
    checks[index] = {
      key, KEYS[place + 1], state, limit, corrections, left_us, cost, stamp_us, actual_cost,
    }
  end
  for _, check in ipairs(checks) do changed = math.max(changed, correct_one(unpack(check))) end
  return struct.pack(CHANGE, 1, changed)
end

local function hold(op, count, packed_request, _, first_key)
  local key = KEYS[first_key]
  local limit = limit_of((struct.unpack(">c35", packed_request, FIRST_CHECK)))
  local holder = string.sub(packed_request, FIRST_CHECK + CHECK_BYTES)
  local algorithm = limit.algorithm
  local change = op == RENEW and algorithm.renew or algorithm.release
  local changed = change(key, algorithm.load(key, holder, limit), limit, now_us, holder)
  return struct.pack(CHANGE, 1, changed)
end

local function reset(op, count, packed_request, _, first_key)
  local changed = 0
  for index = first_key, first_key + count - 1 do
    changed = math.max(changed, redis.call("DEL", KEYS[index]))
  end
  return struct.pack(CHANGE, 1, changed)
end

-- What is replied to a request that failed. The fault of a shadow is nobody's business.
local function fault(message, op, count, limit)
  asking = false
  if count == 1 and op <= PEEK and limit.flags % 2 ~= ENFORCE then return "\1" .. unknown(limit) end
  return {0, type(message) == "table" and message.err or message}
end

return {decide, decide, correct, hold, hold, reset, read = read, fault = fault}
