-- Carries out requests one after the other, each by itself: what one does wrong harms no other.
--
-- KEYS: the states of the first request, then of the next, and so on; for a correction each state is
-- followed by its marker. All of one slot.
-- ARGV: a request each, packed: ">B B" op and the number of checks, ">B c0" the holder, then for
-- each check ">B B I4 I7 I4 I7 I7 I4 I4" code, flags, quota, period_us, capacity, min_interval_us,
-- max_delay_us + 1, tick_us, cost; for a correction also ">I7 I4" stamp_us and the actual cost.
-- Reply: an array for each request. {1, ...} is an answer: for each check allowed, remaining,
-- retry_us, reset_us, delay_us, stamp_us; or, for a change, whether anything was changed.
-- {0, message} is a fault: the request failed and the others did not.

local DECIDE, PEEK, CORRECT, RENEW, RELEASE, RESET = 1, 2, 3, 4, 5, 6
local ENFORCE, COUNT_DENIED, CALENDAR_DAY = 1, 2, 4
local CONCURRENCY = 7
-- Made when the first request asks for one: to make them all takes longer than to decide.
local MAKERS = {fixed_window, sliding_counter, rolling_window, packed_window, token_bucket,
  token_bucket, concurrency}
local made = {}
local next_key = 0

local function keys_of(packed_request)
  local op, count = struct.unpack(">BB", packed_request)
  return op == CORRECT and 2 * count or count
end

local function flag(flags, which)
  return math.floor(flags / which) % 2
end

-- Tables are made in one piece: one that grows field by field is moved again and again.
local function read_check(packed_request, place, op)
  local code, flags, quota, period_us, capacity, min_interval_us, max_delay_us, tick_us, cost, after =
    struct.unpack(">BBI4I7I4I7I7I4I4", packed_request, place)
  local algorithm = made[code]
  if not algorithm then
    algorithm = MAKERS[code]()
    made[code] = algorithm
  end
  local limit = {
    quota = quota, period_us = period_us, capacity = capacity, tick_us = tick_us,
    min_interval_us = min_interval_us, max_delay_us = max_delay_us - 1,
    count_denied = flag(flags, COUNT_DENIED), calendar = flag(flags, CALENDAR_DAY),
  }
  next_key = next_key + 1
  local key = KEYS[next_key]
  local stamp_us, actual_cost, marker
  if op == CORRECT then
    stamp_us, actual_cost, after = struct.unpack(">I7I4", packed_request, after)
    next_key = next_key + 1
    marker = KEYS[next_key]
  end
  return {
    key = key, limit = limit, cost = cost, algorithm = algorithm, slot = code == CONCURRENCY,
    enforce = flags % 2 == ENFORCE, state = op ~= RESET and algorithm.load(key, limit),
    allowed = false, stamp_us = stamp_us, actual_cost = actual_cost, marker = marker,
  }, after
end

-- Reads every state before anything is written: a key that holds something else stops it here.
local function read_request(packed_request)
  local op, count, holder, place = struct.unpack(">BBBc0", packed_request)
  local request = {op = op, holder = holder}
  for index = 1, count do
    request[index], place = read_check(packed_request, place, op)
  end
  return request
end

local function save_all(request)
  for _, check in ipairs(request) do
    if check.state.dirty then
      check.algorithm.save(check.key, check.state, check.limit, now_us)
    end
  end
end

local function ask(request, check, charge)
  local what = check.slot and request.holder or check.cost
  return check.algorithm.decide(check.state, check.limit, now_us, what, charge)
end

local function append(reply, ...)
  local size = #reply
  for index = 1, select("#", ...) do reply[size + index] = (select(index, ...)) end
end

-- Ask every check without charging, then charge all of them or none. A shadow has no say, and is
-- charged if it would have admitted alone; a refusal is charged where a limit counts refusals.
local function decide(request)
  local charge = request.op == DECIDE
  if #request == 1 then
    local reply = {1, ask(request, request[1], charge)}
    save_all(request)
    return reply
  end
  local admitted = true
  for _, check in ipairs(request) do
    check.allowed = ask(request, check, false) == 1
    if check.enforce and not check.allowed then admitted = false end
  end
  local reply = {1}
  for _, check in ipairs(request) do
    local again = charge and (admitted or (check.enforce and not check.allowed))
    append(reply, ask(request, check, again))
  end
  save_all(request)
  return reply
end

-- Make a charge what it should have been, once: the marker lives as long as the charge may count.
local function correct(request)
  local changed = 0
  for _, check in ipairs(request) do
    local algorithm, state, limit = check.algorithm, check.state, check.limit
    if redis.call("EXISTS", check.marker) == 0 then
      local left_us = algorithm.left_us(state, limit, now_us)
      local more = check.actual_cost - check.cost
      if more > 0 then
        algorithm.debit(state, limit, now_us, more)
        left_us = algorithm.left_us(state, limit, now_us)
        changed = 1
      elseif algorithm.refund(state, limit, now_us, -more, check.stamp_us) > 0 then
        changed = 1
      end
      if left_us > 0 then redis.call("SET", check.marker, "", "PX", ttl_ms(left_us)) end
    end
  end
  save_all(request)
  return {1, changed}
end

local function hold(request)
  local check = request[1]
  local change = request.op == RENEW and check.algorithm.renew or check.algorithm.release
  local changed = change(check.state, check.limit, now_us, request.holder)
  save_all(request)
  return {1, changed}
end

local function reset(request)
  local changed = 0
  for _, check in ipairs(request) do
    changed = math.max(changed, redis.call("DEL", check.key))
  end
  return {1, changed}
end

local HANDLERS = {decide, decide, correct, hold, hold, reset}

local function answer(packed_request)
  local request = read_request(packed_request)
  return HANDLERS[request.op](request)
end

local replies = {}
for index = 1, REQUESTS do
  -- Counted by what a request says it has, also when it fails before it has come to all its keys.
  local after = next_key + keys_of(ARGV[index])
  local done, reply = pcall(answer, ARGV[index])
  if not done then
    reply = {0, type(reply) == "table" and reply.err or reply}
  end
  next_key = after
  replies[index] = reply
end
return replies
