-- Fixed window. The twin of fixed_window.py: same steps, same names.
--
-- State: a string, ">I7 I7 I4 I7": start_us, end_us, count, offset_us.
-- TTL: until one period after the window's end.

local WINDOW = ">I7I7I4I7"
local WINDOW_BYTES = 25
local DAY_US = 86400000000
local LONGEST_MONTH_US = 2678400000000

local function calendar_window(limit, t_us)
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

  local day = math.floor(t_us / DAY_US)
  if limit.flags >= CALENDAR_DAY then return day * DAY_US, (day + 1) * DAY_US end
  local year, month = month_of(day)
  local next_year, next_month = year, month + 1
  if month == 12 then next_year, next_month = year + 1, 1 end
  return first_day(year, month) * DAY_US, first_day(next_year, next_month) * DAY_US
end

local function read(kept, limit)
  if not kept then return 0, 0, 0, 0 end
  if #kept ~= WINDOW_BYTES then error(BAD_STATE, 0) end
  local start_us, end_us, count, offset_us = struct.unpack(WINDOW, kept)
  local span_us, shortest_us, longest_us = end_us - start_us, limit.period_us, limit.period_us
  if longest_us == 0 then shortest_us, longest_us = DAY_US, LONGEST_MONTH_US end
  if span_us < shortest_us or span_us > longest_us or end_us > LATEST_US or offset_us >= end_us
    or count > MOST_UNITS then
    error(BAD_STATE, 0)
  end
  return start_us, end_us, count, offset_us
end

-- Returns the state's time, the start and end of its window, the count in it, and whether the clock
-- has stepped back.
local function advance(kept, limit, now_us)
  local start_us, end_us, count, offset_us = read(kept, limit)
  local t_us = now_us + offset_us
  if t_us < start_us then return start_us, start_us, end_us, count, true end
  if t_us < end_us then return t_us, start_us, end_us, count, false end
  if t_us >= 2 * end_us - start_us then t_us = now_us end
  local period_us = limit.period_us
  if period_us > 0 then
    start_us = limit.flags >= FROM_FIRST and t_us or t_us - t_us % period_us
    end_us = start_us + period_us
  else
    start_us, end_us = calendar_window(limit, t_us)
  end
  return t_us, start_us, end_us, 0, false
end

local function save(key, now_us, t_us, start_us, end_us, count)
  keep(key, struct.pack(WINDOW, start_us, end_us, count, t_us - now_us),
    2 * end_us - start_us - t_us)
end

local function decide(key, kept, limit, now_us, cost, charge)
  -- advance
  local t_us, start_us, end_us, count, stepped_back = advance(kept, limit, now_us)

  -- decide
  local quota, retry_us, stamp_us = limit.quota, 0, UNCHARGED
  local after = count + cost
  if after > quota and cost > 0 then
    retry_us = cost <= quota and end_us - t_us or NEVER_US

  -- store
  elseif charge and cost > 0 then
    count = after
    stamp_us = t_us
  end
  if stamp_us ~= UNCHARGED or stepped_back then save(key, now_us, t_us, start_us, end_us, count) end

  -- reply
  return retry_us == 0 and 1 or 0, math.max(quota - count, 0), retry_us,
    count > 0 and end_us - t_us or 0, 0, stamp_us
end

local function corrections()
  local function refund(key, kept, limit, now_us, cost, stamp_us)
    local t_us, start_us, end_us, count, stepped_back = advance(kept, limit, now_us)
    local back = 0
    if start_us <= stamp_us and stamp_us <= t_us then back = math.min(cost, count) end
    if back > 0 or stepped_back then save(key, now_us, t_us, start_us, end_us, count - back) end
    return back
  end

  local function debit(key, kept, limit, now_us, cost)
    local t_us, start_us, end_us, count = advance(kept, limit, now_us)
    count = math.max(count, math.min(count + cost, 2 * limit.quota))
    save(key, now_us, t_us, start_us, end_us, count)
  end

  local function left_us(kept, limit, now_us)
    if not kept then return 0 end
    local start_us, end_us, _, offset_us = read(kept, limit)
    return 2 * end_us - start_us - now_us - offset_us
  end

  return {refund = refund, debit = debit, left_us = left_us}
end

return {load = load, decide = decide, corrections = corrections}
