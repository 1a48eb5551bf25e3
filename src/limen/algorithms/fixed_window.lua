-- Fixed window. The twin of fixed_window.py: same steps, same names.
--
-- State: a string, ">I7 I7 I4 I7": start_us, end_us, count, offset_us.
-- TTL: until one period after the window's end.

local fixed = {}
local WINDOW = ">I7I7I4I7"
local DAY_US = 86400000000

function fixed.load(key)
  local kept = redis.call("GET", key)
  local start_us, end_us, count, offset_us = 0, 0, 0, 0
  if kept then start_us, end_us, count, offset_us = struct.unpack(WINDOW, kept) end
  return {
    known = kept and true, dirty = false, start_us = start_us, end_us = end_us, count = count,
    offset_us = offset_us,
  }
end

function fixed.left_us(state, limit, now_us)
  return 2 * state.end_us - state.start_us - now_us - state.offset_us
end

function fixed.save(key, state, limit, now_us)
  local left_us = fixed.left_us(state, limit, now_us)
  if left_us <= 0 then
    if state.known then redis.call("DEL", key) end
    return
  end
  local kept = struct.pack(WINDOW, state.start_us, state.end_us, state.count, state.offset_us)
  redis.call("SET", key, kept, "PX", ttl_ms(left_us))
end

-- Year and month of a day counted from 1970-01-01; years are counted from March.
local function month_of(day)
  local era, day_of_era = divmod(day + 719468, 146097)
  local year_of_era = math.floor((day_of_era - math.floor(day_of_era / 1460)
    + math.floor(day_of_era / 36524) - math.floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era
    - (365 * year_of_era + math.floor(year_of_era / 4) - math.floor(year_of_era / 100))
  local from_march = math.floor((5 * day_of_year + 2) / 153)
  local year = year_of_era + era * 400
  if from_march < 10 then return year, from_march + 3 end
  return year + 1, from_march - 9
end

local function first_day(year, month)
  if month <= 2 then year = year - 1 end
  local era, year_of_era = divmod(year, 400)
  local from_march = (month + 9) % 12
  local day_of_year = math.floor((153 * from_march + 2) / 5)
  local day_of_era = year_of_era * 365 + math.floor(year_of_era / 4)
    - math.floor(year_of_era / 100) + day_of_year
  return era * 146097 + day_of_era - 719468
end

local function window_at(limit, t_us)
  if limit.period_us > 0 then
    local start_us = t_us - t_us % limit.period_us
    return start_us, start_us + limit.period_us
  end
  local day = math.floor(t_us / DAY_US)
  if limit.calendar == 1 then return day * DAY_US, (day + 1) * DAY_US end
  local year, month = month_of(day)
  local next_year, next_month = year, month + 1
  if month == 12 then next_year, next_month = year + 1, 1 end
  return first_day(year, month) * DAY_US, first_day(next_year, next_month) * DAY_US
end

function fixed.decide(state, limit, now_us, cost, charge)
  -- advance
  local t_us, start_us, end_us, count = fixed.advance(state, limit, now_us)

  -- decide
  local quota, retry_us, stamp_us = limit.quota, 0, UNCHARGED
  local after = count + cost
  if after > quota and cost > 0 then
    retry_us = cost <= quota and end_us - t_us or NEVER_US

  -- store
  elseif charge and cost > 0 then
    count = after
    state.start_us, state.end_us, state.count = start_us, end_us, count
    state.offset_us = t_us - now_us
    state.dirty = true
    stamp_us = t_us
  end

  -- reply
  return retry_us == 0 and 1 or 0, math.max(quota - count, 0), retry_us,
    count > 0 and end_us - t_us or 0, 0, stamp_us
end

function fixed.refund(state, limit, now_us, cost, stamp_us)
  local t_us, start_us, _, count = fixed.advance(state, limit, now_us)
  if stamp_us < start_us or stamp_us > t_us then return 0 end
  local back = math.min(cost, count)
  state.count = count - back
  state.dirty = true
  return back
end

function fixed.debit(state, limit, now_us, cost)
  local t_us, start_us, end_us, count = fixed.advance(state, limit, now_us)
  state.start_us, state.end_us = start_us, end_us
  state.count = math.max(count, math.min(count + cost, 2 * limit.quota))
  state.offset_us = t_us - now_us
  state.dirty = true
end

-- Changes nothing but offset_us, and that only when the clock has stepped back.
function fixed.advance(state, limit, now_us)
  local start_us, end_us = state.start_us, state.end_us
  local t_us = time_of(state, start_us, now_us)
  if t_us < end_us then return t_us, start_us, end_us, state.count end
  if t_us >= 2 * end_us - start_us then t_us = now_us end
  start_us, end_us = window_at(limit, t_us)
  return t_us, start_us, end_us, 0
end

return fixed
