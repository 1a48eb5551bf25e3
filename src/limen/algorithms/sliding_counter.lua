-- Sliding counter. The twin of sliding_counter.py: same steps, same names.
--
-- State: a string, ">I7 I4 I4 I7": start_us, current, previous, offset_us.
-- TTL: until the current window has slid out of view too.

local sliding = {}
local WINDOWS = ">I7I4I4I7"

function sliding.load(key)
  local kept = redis.call("GET", key)
  local start_us, current, previous, offset_us = 0, 0, 0, 0
  if kept then start_us, current, previous, offset_us = struct.unpack(WINDOWS, kept) end
  return {
    known = kept and true, dirty = false, start_us = start_us, current = current,
    previous = previous, offset_us = offset_us,
  }
end

function sliding.left_us(state, limit, now_us)
  if state.current == 0 and state.previous == 0 then return 0 end
  return state.start_us + 2 * limit.period_us - now_us - state.offset_us
end

function sliding.save(key, state, limit, now_us)
  local left_us = sliding.left_us(state, limit, now_us)
  if left_us <= 0 then
    if state.known then redis.call("DEL", key) end
    return
  end
  local kept = struct.pack(WINDOWS, state.start_us, state.current, state.previous, state.offset_us)
  redis.call("SET", key, kept, "PX", ttl_ms(left_us))
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

function sliding.decide(state, limit, now_us, cost, charge)
  -- advance
  local t_us, start_us, current, previous = sliding.advance(state, limit, now_us)

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
    state.start_us, state.current, state.previous = start_us, current, previous
    state.offset_us = t_us - now_us
    state.dirty = true
    stamp_us = t_us
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

function sliding.refund(state, limit, now_us, cost, stamp_us)
  local t_us, start_us, current, previous = sliding.advance(state, limit, now_us)
  local back
  if stamp_us > t_us then return 0 end
  if stamp_us >= start_us then
    back = math.min(cost, current)
    current = current - back
  elseif stamp_us >= start_us - limit.period_us then
    back = math.min(cost, previous)
    previous = previous - back
  else
    return 0
  end
  state.start_us, state.current, state.previous = start_us, current, previous
  state.offset_us = t_us - now_us
  state.dirty = true
  return back
end

function sliding.debit(state, limit, now_us, cost)
  local t_us, start_us, current, previous = sliding.advance(state, limit, now_us)
  state.start_us, state.previous = start_us, previous
  state.current = math.max(current, math.min(current + cost, 2 * limit.quota))
  state.offset_us = t_us - now_us
  state.dirty = true
end

-- Changes nothing but offset_us, and that only when the clock has stepped back.
function sliding.advance(state, limit, now_us)
  local period_us, start_us = limit.period_us, state.start_us
  local t_us = time_of(state, start_us, now_us)
  local age_us = t_us - start_us
  if age_us < period_us then return t_us, start_us, state.current, state.previous end
  if age_us < 2 * period_us then return t_us, start_us + period_us, 0, state.current end
  return now_us, now_us - now_us % period_us, 0, 0
end

return sliding
