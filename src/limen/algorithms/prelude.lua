-- What every script begins with. All numbers are whole and below 2^53.

local NEVER_US = -1
local UNCHARGED = -1

local function divmod(a, b)
  local rem = a % b
  return (a - rem) / b, rem
end

local function ceil_div(a, b)
  local whole, rem = divmod(a, b)
  return rem > 0 and whole + 1 or whole
end

-- The state's time: the clock and its offset. Below what is known to have been reached, the clock
-- has stepped back: the gap is added to the offset, and time stands still.
local function time_of(state, reached_us, now_us)
  local t_us = now_us + state.offset_us
  if t_us >= reached_us then return t_us end
  state.offset_us = state.offset_us + reached_us - t_us
  state.dirty = true
  return reached_us
end

-- A TTL is rounded up, and a millisecond is added because keys expire by a coarser clock.
local function ttl_ms(left_us)
  return ceil_div(left_us, 1000) + 1
end

-- The time in which `units` drain at `quota` per period: microseconds, and a remainder in 1/quota.
local function drain_time(limit, quota, units)
  local interval_us, interval_rem = limit.interval_us, limit.interval_rem
  if quota ~= limit.quota then interval_us, interval_rem = divmod(limit.period_us, quota) end
  if interval_rem == 0 then return units * interval_us, 0 end
  local carry, rem = divmod(units * interval_rem, quota)
  return units * interval_us + carry, rem
end

-- How many whole units still fit beside what is in use. The product with the quota would pass 2^53,
-- so the quotient is estimated, and then mended by times that do not.
local function units_left(limit, used_us, used_rem)
  local free_us, free_rem = limit.fill_us - used_us, limit.fill_rem - used_rem
  if free_rem < 0 then free_us, free_rem = free_us - 1, free_rem + limit.quota end
  if free_us < 0 then return 0 end
  local units = math.min(math.floor(free_us / limit.period_us * limit.quota) + 1, limit.capacity)
  while units > 0 do
    local us, rem = drain_time(limit, limit.quota, units)
    if us < free_us or (us == free_us and rem <= free_rem) then break end
    units = units - 1
  end
  return units
end

local function least(a_us, a_rem, b_us, b_rem)
  if a_us < b_us or (a_us == b_us and a_rem <= b_rem) then return a_us, a_rem end
  return b_us, b_rem
end

-- The lower end of a range of scores that does not contain `t_us` itself.
local function above(t_us)
  return string.format("(%.0f", t_us)
end
