-- What a call seldom has: requests of several checks, changes, and faults. See driver.lua.
--
-- Each handler takes the packed request, its op, the number of its checks, and the place in KEYS of
-- the first of them; it returns the reply.

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

local function read_checks(packed_request, op, count, first_key)
  local size, keys = CHECK_BYTES, 1
  if op == CORRECT then size, keys = CHECK_BYTES + CORRECTION_BYTES, 2 end
  local holder = string.sub(packed_request, FIRST_CHECK + count * size)
  local checks = {}
  for index = 1, count do
    local place, key = FIRST_CHECK + (index - 1) * size, first_key + (index - 1) * keys
    local packed_limit, cost = struct.unpack(">c35I4", packed_request, place)
    local limit = limit_of(packed_limit)
    -- Eight fields: with one more, the table would be twice as large.
    local check = {
      key = KEYS[key], limit = limit, enforce = limit.flags % 2 == ENFORCE,
      what = limit.flags >= SLOTS and holder or cost,
      state = false, reading = false, allowed = false, pending = false,
    }
    if op == CORRECT then
      check.marker = KEYS[key + 1]
      check.stamp_us, check.actual_cost =
        struct.unpack(">I7I4", packed_request, place + CHECK_BYTES)
    end
    checks[index] = check
  end
  return checks
end

local function load(check)
  check.state = check.limit.algorithm.load(check.key, check.what)
end

local function ask(check, charge)
  local limit = check.limit
  return struct.pack(READING,
    limit.algorithm.decide(check.key, check.state, limit, now_us, check.what, charge))
end

local function try(check, charge)
  load(check)
  pending = nil
  local reading = ask(check, charge)
  check.reading, check.allowed, check.pending = reading, string.byte(reading) == 1, pending
end

-- What a shadow says that has failed: as much as one that has counted nothing.
local function unknown(limit)
  return struct.pack(READING, 1, limit.capacity, 0, 0, 0, UNCHARGED)
end

-- Try every check without writing, then charge all of them or none. A shadow has no say, and is
-- charged if it would have admitted alone; a refusal is charged where a limit counts refusals.
local function decide(packed_request, op, count, first_key)
  local checks = read_checks(packed_request, op, count, first_key)
  local charge, admitted = op == DECIDE, true
  asking = true
  for index = 1, count do
    local check = checks[index]
    if check.enforce then
      try(check, charge)
      admitted = admitted and check.allowed
    else
      pcall(try, check, charge)
    end
  end
  asking = false
  local parts = {"\1"}
  for index = 1, count do
    local check = checks[index]
    local reading = check.reading
    if not reading then
      reading = unknown(check.limit)
    elseif charge and not admitted and (check.allowed or not check.enforce) then
      -- Others refused: what it says of a charge does not hold.
      reading = ask(check, false)
    elseif check.pending then
      check.pending[1](unpack(check.pending, 2, 9))
    end
    parts[index + 1] = reading
  end
  return table.concat(parts)
end

-- Make a charge what it should have been, once: the marker lives as long as the charge may count.
local function correct_one(check)
  local key, state, limit = check.key, check.state, check.limit
  local algorithm = limit.algorithm
  if redis.call("EXISTS", check.marker) == 1 then return 0 end
  local corrections, changed = algorithm.corrections(), 1
  local left_us = corrections.left_us(state, limit, now_us)
  local more = check.actual_cost - check.what
  if more > 0 then
    corrections.debit(key, state, limit, now_us, more)
    left_us = corrections.left_us(algorithm.load(key), limit, now_us)
  elseif corrections.refund(key, state, limit, now_us, -more, check.stamp_us) == 0 then
    changed = 0
  end
  if left_us > 0 then redis.call("SET", check.marker, "", "PX", ttl_ms(left_us)) end
  return changed
end

local function correct(packed_request, op, count, first_key)
  local checks, changed = read_checks(packed_request, op, count, first_key), 0
  for _, check in ipairs(checks) do load(check) end
  for _, check in ipairs(checks) do changed = math.max(changed, correct_one(check)) end
  return struct.pack(CHANGE, 1, changed)
end

local function hold(packed_request, op, count, first_key)
  local check = read_checks(packed_request, op, count, first_key)[1]
  load(check)
  local algorithm = check.limit.algorithm
  local change = op == RENEW and algorithm.renew or algorithm.release
  return struct.pack(CHANGE, 1, change(check.key, check.state, check.limit, now_us, check.what))
end

local function reset(packed_request, op, count, first_key)
  local changed = 0
  for index = first_key, first_key + count - 1 do
    changed = math.max(changed, redis.call("DEL", KEYS[index]))
  end
  return struct.pack(CHANGE, 1, changed)
end

-- What is replied to a request that failed. The fault of a shadow is nobody's business.
local function fault(message, op, count, packed_limit)
  asking = false
  if count == 1 and op <= PEEK then
    local limit = limit_of(packed_limit)
    if limit.flags % 2 ~= ENFORCE then return "\1" .. unknown(limit) end
  end
  return {0, type(message) == "table" and message.err or message}
end

return {decide, decide, correct, hold, hold, reset, fault = fault}
