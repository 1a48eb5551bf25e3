-- Sliding counter. The twin of sliding_counter.py: same steps, same names.
--
-- State: a string, ">I7 I4 I4 I7": start_us, current, previous, offset_us.
-- TTL: until the current window has slid out of view too.

local WINDOWS = ">I7I4I4I7"
local WINDOWS_BYTES = 22

local function read(kept, limit)
  if not kept then return 0, 0, 0, 0 end
  if #kept ~= WINDOWS_BYTES then error(BAD_STATE, 0) end
  local start_us, current, previous, offset_us = struct.unpack(WINDOWS, kept)
  local period_us = limit.period_us
  if start_us > LATEST_US or start_us % period_us ~= 0 or offset_us >= start_us + period_us
    or current > MOST_UNITS or previous > MOST_UNITS then
    error(BAD_STATE, 0)
  end
  return start_us, current, previous, offset_us
end

-- Returns the state's time, the start of its window, the counts in it and before it, and whether
-- the clock has stepped back.
local function advance(kept, limit, now_us)
  local start_us, current, previous, offset_us = read(kept, limit)
  local period_us, t_us = limit.period_us, now_us + offset_us
  if t_us < start_us then return start_us, start_us, current, previous, true end
  local age_us = t_us - start_us
  if age_us < period_us then return t_us, start_us, current, previous, false end
  if age_us < 2 * period_us then return t_us, start_us + period_us, 0, current, false end
  return now_us, now_us - now_us % period_us, 0, 0, false
end

local function save(key, limit, now_us, t_us, start_us, current, previous)
  local left_us = 0
  if current > 0 or previous > 0 then left_us = start_us + 2 * limit.period_us - t_us end
  keep(key, struct.pack(WINDOWS, start_us, current, previous, t_us - now_us), left_us)
end

-- When `cost` would fit, if nobody else comes. It does not now; cost <= quota.
local function earliest(limit, start_us, current, previous, cost)
  local period_us, tick_us = limit.period_us, limit.tick_us
  local period = ceil_div(period_us, tick_us)
  local free = limit.quota - current - cost
  if free > 0 and previous > 0 then
    local left = divmod(free * period, previous)
    if left > 0 then return start_us + period_us - math.min(left * tick_us, period_us) end
  end
  free = limit.quota - cost
  if current <= free then return start_us + period_us end
  local left = divmod(free * period, current)
  return start_us + 2 * period_us - math.min(left * tick_us, period_us)
end

local function decide(key, kept, limit, now_us, cost, charge)
  -- advance
  local t_us, start_us, current, previous, stepped_back = advance(kept, limit, now_us)

  -- decide
  local period_us, tick_us = limit.period_us, limit.tick_us
  local quota, retry_us, stamp_us = limit.quota, 0, UNCHARGED
  local seen = current
  if previous > 0 then
    local left = ceil_div(start_us + period_us - t_us, tick_us)
    seen = seen + ceil_div(previous * left, ceil_div(period_us, tick_us))
  end
  if seen + cost > quota and cost > 0 then
    retry_us = NEVER_US
    if cost <= quota then
      retry_us = earliest(limit, start_us, current, previous, cost) - t_us
    end

  -- store
  elseif charge and cost > 0 then
    current, seen = current + cost, seen + cost
    stamp_us = t_us
  end
  if stamp_us ~= UNCHARGED or stepped_back then
    save(key, limit, now_us, t_us, start_us, current, previous)
  end

  -- reply
  local reset_us = 0
  if current > 0 then
    reset_us = start_us + 2 * period_us - t_us
  elseif previous > 0 then
    reset_us = start_us + period_us - t_us
  end
  return retry_us == 0 and 1 or 0, math.max(quota - seen, 0), retry_us, reset_us, 0, stamp_us
end

local function corrections()
  local function refund(key, kept, limit, now_us, cost, stamp_us)
    local t_us, start_us, current, previous, stepped_back = advance(kept, limit, now_us)
    local back, in_view = 0, start_us - limit.period_us <= stamp_us and stamp_us <= t_us
    if in_view and stamp_us >= start_us then
      back = math.min(cost, current)
      current = current - back
    elseif in_view then
      back = math.min(cost, previous)
      previous = previous - back
    end
    if in_view or stepped_back then
      save(key, limit, now_us, t_us, start_us, current, previous)
    end
    return back
  end

  local function debit(key, kept, limit, now_us, cost)
    local t_us, start_us, current, previous = advance(kept, limit, now_us)
    current = math.max(current, math.min(current + cost, 2 * limit.quota))
    save(key, limit, now_us, t_us, start_us, current, previous)
  end

  local function left_us(kept, limit, now_us)
    if not kept then return 0 end
    local start_us, _, _, offset_us = read(kept, limit)
    return start_us + 2 * limit.period_us - now_us - offset_us
  end

  return {refund = refund, debit = debit, left_us = left_us}
end

return {load = load, decide = decide, corrections = corrections}
