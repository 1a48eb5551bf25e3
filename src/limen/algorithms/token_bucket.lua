-- Token bucket and leaky bucket. The twin of token_bucket.py: same steps, same names.
--
-- State: a string, ">I7 I4 I7 I7 I7 I4": arrival_us, arrival_rem, shift_us, newest_us, offset_us,
-- and the quota it was written under. TTL: until it has drained, and the ends that were told too.

local bucket = {}
local BUCKET = ">I7I4I7I7I7I4"
local FAR_US = 4503599627370496  -- 2^52

function bucket.load(key, limit)
  limit.interval_us, limit.interval_rem = divmod(limit.period_us, limit.quota)
  limit.fill_us, limit.fill_rem = drain_time(limit, limit.quota, limit.capacity)
  local kept = redis.call("GET", key)
  local arrival_us, arrival_rem, shift_us, newest_us, offset_us, quota = 0, 0, 0, 0, 0, limit.quota
  if kept then
    arrival_us, arrival_rem, shift_us, newest_us, offset_us, quota = struct.unpack(BUCKET, kept)
  end
  return {
    known = kept and true, dirty = false, arrival_us = arrival_us, arrival_rem = arrival_rem,
    shift_us = shift_us, newest_us = newest_us, offset_us = offset_us, quota = quota,
  }
end

local function expires_us(state)
  local end_us = state.arrival_us + state.shift_us
  return state.arrival_rem > 0 and end_us + 1 or end_us
end

function bucket.left_us(state, limit, now_us)
  return expires_us(state) - now_us - state.offset_us
end

function bucket.save(key, state, limit, now_us)
  local left_us = bucket.left_us(state, limit, now_us)
  if left_us <= 0 then
    if state.known then redis.call("DEL", key) end
    return
  end
  local kept = struct.pack(BUCKET, state.arrival_us, state.arrival_rem, state.shift_us,
    state.newest_us, state.offset_us, state.quota)
  redis.call("SET", key, kept, "PX", ttl_ms(left_us))
end

function bucket.decide(state, limit, now_us, cost, charge)
  -- advance
  local t_us, used_us, used_rem = bucket.advance(state, limit, now_us, charge)

  -- decide
  local cost_us, cost_rem = drain_time(limit, limit.quota, cost)
  local after_us, after_rem = used_us + cost_us, used_rem + cost_rem
  if after_rem >= limit.quota then
    after_us, after_rem = after_us + 1, after_rem - limit.quota
  end
  local over_us = after_us - limit.fill_us
  if after_rem > limit.fill_rem then over_us = over_us + 1 end
  local drained_us, delay_us, late_us = used_us, 0, 0
  if used_rem > 0 then drained_us = drained_us + 1 end
  if limit.max_delay_us >= 0 and cost > 0 then
    delay_us = drained_us
    late_us = delay_us - limit.max_delay_us
  end
  if (over_us > 0 or late_us > 0) and cost > 0 then
    local retry_us = math.max(over_us, late_us)
    if cost > limit.capacity then retry_us = NEVER_US end
    return 0, units_left(limit, used_us, used_rem), retry_us, drained_us, 0, UNCHARGED
  end

  -- store
  local stamp_us = UNCHARGED
  if charge and cost > 0 then
    used_us, used_rem, drained_us = after_us, after_rem, after_us
    if used_rem > 0 then drained_us = drained_us + 1 end
    bucket.store(state, limit.quota, now_us, t_us, used_us, used_rem)
    stamp_us = state.arrival_us + state.shift_us
  end

  -- reply
  return 1, units_left(limit, used_us, used_rem), 0, drained_us, delay_us, stamp_us
end

function bucket.refund(state, limit, now_us, cost, stamp_us)
  local quota = state.quota
  local end_us = state.arrival_us + state.shift_us
  local t_us, used_us, used_rem = bucket.advance(state, {quota = quota}, now_us, true)
  if stamp_us > end_us then return 0 end  -- of a state that is no more
  local back_us, back_rem = drain_time(limit, quota, cost)
  local left_rem = stamp_us == end_us and state.arrival_rem or 0
  back_us, back_rem = least(back_us, back_rem, stamp_us - state.shift_us - t_us, left_rem)
  back_us, back_rem = least(back_us, back_rem, used_us, used_rem)
  if back_us < 0 or (back_us == 0 and back_rem <= 0) then return 0 end
  used_us, used_rem = used_us - back_us, used_rem - back_rem
  if used_rem < 0 then used_us, used_rem = used_us - 1, used_rem + quota end
  if stamp_us < end_us then
    state.shift_us = state.shift_us + back_us + (back_rem > 0 and 1 or 0)
  end
  bucket.store(state, quota, now_us, t_us, used_us, used_rem)
  return 1
end

function bucket.debit(state, limit, now_us, cost)
  local quota = state.quota
  local t_us, used_us, used_rem = bucket.advance(state, {quota = quota}, now_us, true)
  local cost_us, cost_rem = drain_time(limit, quota, cost)
  local after_us, after_rem = used_us + cost_us, used_rem + cost_rem
  if after_rem >= quota then after_us, after_rem = after_us + 1, after_rem - quota end
  local most_us, most_rem = drain_time(limit, quota, 2 * limit.capacity)
  if used_us > most_us or (used_us == most_us and used_rem > most_rem) then
    most_us, most_rem = used_us, used_rem
  end
  after_us, after_rem = least(after_us, after_rem, most_us, most_rem)
  bucket.store(state, quota, now_us, t_us, after_us, after_rem)
end

-- Changes the state when the clock has stepped back; and, unless it is a peek, when the quota has
-- changed: from then on it drains at the new rate, also if this request is refused.
function bucket.advance(state, limit, now_us, charge)
  local t_us = time_of(state, state.newest_us, now_us)
  local used_us, used_rem = state.arrival_us - t_us, state.arrival_rem
  if used_us < 0 or (used_us == 0 and used_rem == 0) then
    if expires_us(state) > t_us then return t_us, 0, 0 end
    if charge then
      state.arrival_us, state.arrival_rem, state.shift_us = 0, 0, 0
      state.newest_us, state.offset_us = 0, 0
    end
    return now_us, 0, 0
  end
  if state.quota ~= limit.quota then
    -- (used_us + used_rem / old) * old / new, in steps that each stay below 2^53.
    local whole, part = divmod(used_us, limit.quota)
    local carry, rem = divmod(part * state.quota + used_rem, limit.quota)
    local scaled_us = math.min(whole * state.quota + carry, FAR_US)
    if charge then
      -- What came before is pulled in with the rest.
      state.shift_us = state.shift_us + math.max(used_us + 1 - scaled_us, 0)
      bucket.store(state, limit.quota, now_us, t_us, scaled_us, rem)
    end
    used_us, used_rem = scaled_us, rem
  end
  return t_us, used_us, used_rem
end

-- The ends that were told before stay behind.
function bucket.store(state, quota, now_us, t_us, used_us, used_rem)
  if state.arrival_us <= t_us then
    -- All had drained. Where it was told to end later than now, go on from there.
    state.shift_us = math.max(state.arrival_us + state.shift_us - t_us, 0)
  end
  state.quota = quota
  state.arrival_us = t_us + used_us
  state.arrival_rem = used_rem
  state.newest_us = t_us
  state.offset_us = t_us - now_us
  state.dirty = true
end

return bucket
