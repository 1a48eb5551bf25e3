-- What rolling_window.lua and packed_window.lua have in common: every decision.
-- The twin of exact_window.py: same steps, same names.
--
-- How stamps are kept is the caller's: `stamps` has at(state, index) and up_to(state, t_us). A
-- decision writes nothing; it leaves in `state` what `save` has to do: `drop`, `units`, `t_us`.

local function exact_advance(stamps, state, limit, now_us)
  if state.count == 0 then return now_us, 0 end
  local t_us = time_of(state, state.newest_us, now_us)
  if state.oldest_us > t_us - limit.period_us then return t_us, 0 end
  local expired = stamps.up_to(state, t_us - limit.period_us)
  -- With nothing left in view the state equals none, and none has no offset.
  if expired < state.count then return t_us, expired end
  return now_us, expired
end

local function exact_push(stamps, state, now_us, t_us, units, drop)
  local kept = state.count - drop
  if kept == 0 then
    state.oldest_us = t_us
  elseif drop > 0 then
    state.oldest_us = stamps.at(state, drop)
  end
  state.before, state.drop, state.units, state.t_us = state.count, drop, units, t_us
  state.count = kept + units
  state.last_us, state.newest_us = state.newest_us, t_us
  state.offset_us = t_us - now_us
  state.dirty = true
end

local function exact_decide(stamps, state, limit, now_us, cost, charge)
  -- advance
  local quota, period_us = limit.quota, limit.period_us
  local t_us, expired = exact_advance(stamps, state, limit, now_us)
  local count = state.count - expired

  -- decide
  local retry_us, over = 0, count + cost - quota
  if over > 0 and cost > 0 then
    -- It fits when the first `over` stamps have left.
    if cost > quota then
      retry_us = NEVER_US
    else
      local leaving = expired + over - 1
      local stamp_us = leaving > 0 and stamps.at(state, leaving) or state.oldest_us
      retry_us = stamp_us + period_us - t_us
    end
  end
  if limit.min_interval_us > 0 and count > 0 and cost > 0 and retry_us ~= NEVER_US then
    retry_us = math.max(retry_us, state.newest_us + limit.min_interval_us - t_us)
  end

  -- store
  local allowed, stamp_us = retry_us == 0, UNCHARGED
  if charge and cost > 0 then
    if allowed then
      exact_push(stamps, state, now_us, t_us, cost, expired)
      stamp_us = t_us
      count = count + cost
    elseif limit.count_denied == 1 and retry_us ~= NEVER_US then
      local drop = expired + math.min(math.max(over, 0), cost)
      local kept = state.count - drop
      count = kept + cost
      over = count + cost - quota
      retry_us = 0
      if over > 0 then
        -- Behind what is kept come the stamps of this refusal itself.
        local leaving_us = over <= kept and stamps.at(state, drop + over - 1) or t_us
        retry_us = leaving_us + period_us - t_us
      end
      retry_us = math.max(retry_us, limit.min_interval_us)
      exact_push(stamps, state, now_us, t_us, cost, drop)
    end
  end

  -- reply
  local reset_us = count > 0 and state.newest_us + period_us - t_us or 0
  return allowed and 1 or 0, math.max(quota - count, 0), retry_us, reset_us, 0, stamp_us
end

local function exact_refund(stamps, state, limit, now_us, cost, stamp_us)
  local t_us, expired = exact_advance(stamps, state, limit, now_us)
  if expired == state.count or stamp_us > t_us or stamp_us <= t_us - limit.period_us then
    return 0
  end
  local first = stamps.up_to(state, stamp_us - 1)
  local back = math.min(cost, stamps.up_to(state, stamp_us) - first)
  if back > 0 then
    local count = state.count - back
    if count > 0 then
      -- Read before the cut: the newest and the oldest of what stays.
      local newest = first + back == state.count and first - 1 or state.count - 1
      local oldest = first == 0 and back or 0
      local newest_us, oldest_us = stamps.at(state, newest), stamps.at(state, oldest)
      state.last_us, state.newest_us, state.oldest_us = state.newest_us, newest_us, oldest_us
    end
    state.cut_first, state.cut_units, state.before = first, back, state.count
    state.count = count
    state.dirty = true
  end
  return back
end

local function exact_debit(stamps, state, limit, now_us, cost)
  local t_us, expired = exact_advance(stamps, state, limit, now_us)
  local units = math.min(cost, 2 * limit.quota - (state.count - expired))
  if units > 0 then exact_push(stamps, state, now_us, t_us, units, expired) end
end

-- Give a kind of stamps the functions that every algorithm has.
return function(stamps)
  function stamps.decide(...) return exact_decide(stamps, ...) end
  function stamps.refund(...) return exact_refund(stamps, ...) end
  function stamps.debit(...) return exact_debit(stamps, ...) end
  function stamps.left_us(state, limit, now_us)
    if state.count == 0 then return 0 end
    return state.newest_us + limit.period_us - now_us - state.offset_us
  end
  return stamps
end
