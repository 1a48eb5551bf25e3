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

local function flag(flags, which)
  return math.floor(flags / which) % 2
end

local function read_check(packed_request, place, op)
  local check, limit = {}, {}
  local code, flags, after
  code, flags, limit.quota, limit.period_us, limit.capacity, limit.min_interval_us,
    limit.max_delay_us, limit.tick_us, check.cost, after =
    struct.unpack(">BBI4I7I4I7I7I4I4", packed_request, place)
  limit.max_delay_us = limit.max_delay_us - 1
  limit.count_denied = flag(flags, COUNT_DENIED)
  limit.calendar = flag(flags, CALENDAR_DAY)
  if limit.period_us > 0 then
    limit.fill_us, limit.fill_rem = drain_time(limit, limit.quota, limit.capacity)
  end
  check.limit, check.enforce = limit, flag(flags, ENFORCE) == 1
  if not made[code] then made[code] = MAKERS[code]() end
  check.algorithm, check.slot = made[code], code == CONCURRENCY
  next_key = next_key + 1
  check.key = KEYS[next_key]
  if op == CORRECT then
    check.stamp_us, check.actual_cost, after = struct.unpack(">I7I4", packed_request, after)
    next_key = next_key + 1
    check.marker = KEYS[next_key]
  end
  return check, after
end

local function read_request(packed_request)
  local op, count, holder, place = struct.unpack(">BBBc0", packed_request)
  local request = {op = op, holder = holder}
  for index = 1, count do
    request[index], place = read_check(packed_request, place, op)
  end
  return request
end

local function load_all(request)
  for _, check in ipairs(request) do
    check.state = check.algorithm.load(check.key, check.limit)
  end
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
  check.reading = {check.algorithm.decide(check.state, check.limit, now_us, what, charge)}
  return check.reading[1] == 1
end

-- Ask every check without charging, then charge all of them or none. A shadow has no say, and is
-- charged if it would have admitted alone; a refusal is charged where a limit counts refusals.
local function decide(request)
  load_all(request)
  local charge = request.op == DECIDE
  if #request == 1 then
    ask(request, request[1], charge)
  else
    local admitted = true
    for _, check in ipairs(request) do
      check.allowed = ask(request, check, false)
      if check.enforce and not check.allowed then admitted = false end
    end
    if charge then
      for _, check in ipairs(request) do
        if admitted or (check.enforce and not check.allowed) then ask(request, check, true) end
      end
    end
  end
  save_all(request)
  local reply = {1}
  for _, check in ipairs(request) do
    for _, number in ipairs(check.reading) do reply[#reply + 1] = number end
  end
  return reply
end

-- Make a charge what it should have been, once: the marker lives as long as the charge may count.
local function correct(request)
  load_all(request)
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
  load_all(request)
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

local replies = {}
for index = 1, REQUESTS do
  local request = read_request(ARGV[index])
  local done, reply = pcall(HANDLERS[request.op], request)
  if not done then
    reply = {0, type(reply) == "table" and reply.err or reply}
  end
  replies[index] = reply
end
return replies
