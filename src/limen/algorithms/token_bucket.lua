-- Token bucket and leaky bucket. The twin of token_bucket.py: same steps, same names.
--
-- State: a string, ">I7 I4 I7 I7 I7 I4": arrival_us, arrival_rem, shift_us, newest_us, offset_us,
-- and the quota it was written under. TTL: until it has drained, and the ends that were told too.

local BUCKET = ">I7I4I7I7I7I4"
local BUCKET_BYTES = 36
local MOST_QUOTA = 90000000
-- 2^52: nothing takes longer to drain.
local FAR_US = 4503599627370496
-- 2^53: no end that was told is later.
local LAST_END_US = 9007199254740992
-- 2^51: with a larger shift, sums of times would pass 2^53.
local MOST_SHIFT_US = 2251799813685248

-- The time in which `units` drain, if one takes `interval_us` and `interval_rem`: microseconds, and
-- a remainder in 1/quota of one.
local function drain_time(quota, interval_us, interval_rem, units)
  if interval_rem == 0 then return units * interval_us, 0 end
  local carry, rem = divmod(units * interval_rem, quota)
  return units * interval_us + carry, rem
end

-- How many whole units still fit into what is free. The product with the quota would pass 2^53, so
-- the quotient is estimated, and then mended by times that do not.
local function units_left(limit, interval_us, interval_rem, free_us, free_rem)
  local quota = limit.quota
  if free_rem < 0 then free_us, free_rem = free_us - 1, free_rem + quota end
  if free_us < 0 then return 0 end
  local period_us = limit.period_us
  local units = math.floor(free_us / period_us * quota + free_rem / period_us) + 1
  units = math.min(units, limit.capacity)
  while units > 0 do
    local us, rem = drain_time(quota, interval_us, interval_rem, units)
    if us < free_us or (us == free_us and rem <= free_rem) then break end
    units = units - 1
  end
  return units
end

local function add(quota, a_us, a_rem, b_us, b_rem)
  local us, rem = a_us + b_us, a_rem + b_rem
  if rem >= quota then return us + 1, rem - quota end
  return us, rem
end

local function read(kept, quota)
  if not kept then return 0, 0, 0, 0, 0, quota end
  if #kept ~= BUCKET_BYTES then error(BAD_STATE, 0) end
  local arrival_us, arrival_rem, shift_us, newest_us, offset_us, written =
    struct.unpack(BUCKET, kept)
  local used_us = arrival_us - newest_us
  if newest_us > LATEST_US or offset_us > newest_us or used_us < 0 or used_us > FAR_US
    or shift_us > MOST_SHIFT_US or arrival_us + shift_us > LAST_END_US or written > MOST_QUOTA
    or arrival_rem >= written then
    error(BAD_STATE, 0)
  end
  return arrival_us, arrival_rem, shift_us, newest_us, offset_us, written
end

-- The shift after a refund or a new quota has pulled in what lies behind.
local function shifted(shift_us, by_us)
  shift_us = shift_us + by_us
  return shift_us > MOST_SHIFT_US and 0 or shift_us
end

-- Returns the state's time; what is in use at it, as drain time under `quota`; the shift; whether
-- the quota has changed; and whether the clock has stepped back.
local function advance(kept, quota, now_us)
  local arrival_us, arrival_rem, shift_us, newest_us, offset_us, written = read(kept, quota)
  local t_us = now_us + offset_us
  local stepped_back = t_us < newest_us
  if stepped_back then t_us = newest_us end
  local used_us, used_rem = arrival_us - t_us, arrival_rem
  if used_us < 0 or (used_us == 0 and used_rem == 0) then
    -- All has drained. Where it was told to end later than now, it goes on from there.
    local end_us = arrival_us + shift_us
    if end_us < t_us or (end_us == t_us and arrival_rem == 0) then return now_us, 0, 0, 0 end
    return t_us, 0, 0, end_us - t_us, false, stepped_back
  end
  if written == quota then return t_us, used_us, used_rem, shift_us, false, stepped_back end
  -- (used_us + used_rem / old) * old / new, in steps that each stay below 2^53.
  local whole, part = divmod(used_us, quota)
  local carry, rem = divmod(part * written + used_rem, quota)
  local scaled_us = math.min(whole * written + carry, FAR_US)
  -- What came before is pulled in with the rest.
  shift_us = shifted(shift_us, math.max(used_us + 1 - scaled_us, 0))
  return t_us, scaled_us, rem, shift_us, true, stepped_back
end

local function save(key, quota, now_us, t_us, used_us, used_rem, shift_us)
  local left_us = used_us + shift_us
  if used_rem > 0 then left_us = left_us + 1 end
  keep(key, struct.pack(BUCKET, t_us + used_us, used_rem, shift_us, t_us, t_us - now_us,
    quota), left_us)
end

-- The clock has stepped back, and nothing else is to be kept.
local function save_step(key, kept, now_us)
  local arrival_us, arrival_rem, shift_us, newest_us, _, quota = struct.unpack(BUCKET, kept)
  local left_us = arrival_us + shift_us - newest_us
  if arrival_rem > 0 then left_us = left_us + 1 end
  keep(key, struct.pack(BUCKET, arrival_us, arrival_rem, shift_us, newest_us,
    newest_us - now_us, quota), left_us)
end

local function decide(key, kept, limit, now_us, cost, charge)
  -- advance
  local quota = limit.quota
  local t_us, used_us, used_rem, shift_us, scaled, stepped_back = advance(kept, quota, now_us)

  -- decide
  local interval_us, interval_rem = divmod(limit.period_us, quota)
  local fill_us, fill_rem = drain_time(quota, interval_us, interval_rem, limit.capacity)
  local after_us, after_rem = add(quota, used_us, used_rem,
    drain_time(quota, interval_us, interval_rem, cost))
  local over_us = after_us - fill_us
  if after_rem > fill_rem then over_us = over_us + 1 end
  local drained_us, delay_us, late_us = used_us, 0, 0
  if used_rem > 0 then drained_us = drained_us + 1 end
  if limit.max_delay_us >= 0 and cost > 0 then
    delay_us = drained_us
    late_us = delay_us - limit.max_delay_us
  end
  local retry_us, stamp_us = 0, UNCHARGED
  if (over_us > 0 or late_us > 0) and cost > 0 then
    retry_us = cost > limit.capacity and NEVER_US or math.max(over_us, late_us)
    delay_us = 0

  -- store
  elseif charge and cost > 0 then
    used_us, used_rem, drained_us = after_us, after_rem, after_us
    if used_rem > 0 then drained_us = drained_us + 1 end
    stamp_us = t_us + used_us + shift_us
  end
  if stamp_us ~= UNCHARGED or (charge and scaled) then
    -- With a new quota it drains at the new rate from now on, also if this request is refused.
    save(key, quota, now_us, t_us, used_us, used_rem, shift_us)
  elseif stepped_back then
    save_step(key, kept, now_us)
  end

  -- reply
  local remaining =
    units_left(limit, interval_us, interval_rem, fill_us - used_us, fill_rem - used_rem)
  return retry_us == 0 and 1 or 0, remaining, retry_us, drained_us, delay_us, stamp_us
end

local function corrections()
  local function least(a_us, a_rem, b_us, b_rem)
    if a_us < b_us or (a_us == b_us and a_rem <= b_rem) then return a_us, a_rem end
    return b_us, b_rem
  end

  local function refund(key, kept, limit, now_us, cost, stamp_us)
    local arrival_us, _, told_us, _, _, quota = read(kept, limit.quota)
    local end_us = arrival_us + told_us
    local t_us, used_us, used_rem, shift_us, _, stepped_back = advance(kept, quota, now_us)
    local interval_us, interval_rem = divmod(limit.period_us, quota)
    local back_us, back_rem = drain_time(quota, interval_us, interval_rem, cost)
    local left_rem = stamp_us == end_us and used_rem or 0
    back_us, back_rem = least(back_us, back_rem, stamp_us - shift_us - t_us, left_rem)
    back_us, back_rem = least(back_us, back_rem, used_us, used_rem)
    -- A stamp beyond the end is of a state that is no more.
    if stamp_us > end_us or back_us < 0 or (back_us == 0 and back_rem == 0) then
      if stepped_back then save_step(key, kept, now_us) end
      return 0
    end
    used_us, used_rem = used_us - back_us, used_rem - back_rem
    if used_rem < 0 then used_us, used_rem = used_us - 1, used_rem + quota end
    if stamp_us < end_us then
      shift_us = shifted(shift_us, back_us + (back_rem > 0 and 1 or 0))
    end
    save(key, quota, now_us, t_us, used_us, used_rem, shift_us)
    return 1
  end

  local function debit(key, kept, limit, now_us, cost)
    local _, _, _, _, _, quota = read(kept, limit.quota)
    local t_us, used_us, used_rem, shift_us = advance(kept, quota, now_us)
    local interval_us, interval_rem = divmod(limit.period_us, quota)
    -- In two steps: the drain time of twice the capacity may pass 2^53 on its way.
    local fill_us, fill_rem = drain_time(quota, interval_us, interval_rem, limit.capacity)
    local most_us, most_rem = add(quota, fill_us, fill_rem, fill_us, fill_rem)
    if used_us > most_us or (used_us == most_us and used_rem > most_rem) then
      most_us, most_rem = used_us, used_rem
    end
    local first = math.min(cost, limit.capacity)
    local after_us, after_rem = add(quota, used_us, used_rem,
      drain_time(quota, interval_us, interval_rem, first))
    after_us, after_rem = add(quota, after_us, after_rem,
      drain_time(quota, interval_us, interval_rem, math.min(cost - first, limit.capacity)))
    after_us, after_rem = least(after_us, after_rem, most_us, most_rem)
    after_us, after_rem = least(after_us, after_rem, FAR_US, 0)
    save(key, quota, now_us, t_us, after_us, after_rem, shift_us)
  end

  local function left_us(kept, limit, now_us)
    local arrival_us, arrival_rem, shift_us, _, offset_us = read(kept, limit.quota)
    local end_us = arrival_us + shift_us
    if arrival_rem > 0 then end_us = end_us + 1 end
    return end_us - now_us - offset_us
  end

  return {refund = refund, debit = debit, left_us = left_us}
end

return {load = load, decide = decide, corrections = corrections}
