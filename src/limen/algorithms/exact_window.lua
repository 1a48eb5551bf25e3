-- What rolling_window.lua and packed_window.lua have in common: every decision.
-- The twin of exact_window.py: same steps, same names.
--
-- How stamps are kept is told by the file before this one. It has load(key), and
--   at(key, state, limit, index): the stamp at `index`, counted from the oldest;
--   up_to(key, state, limit, t_us): how many stamps are not later than `t_us`, and, where that
--     comes for free, the stamp behind them;
--   write(key, state, limit, now_us, t_us, units, drop, oldest_us): drop the `drop` oldest and add
--     `units` stamps of `t_us`; `oldest_us` is then the oldest, where that is known;
--   cut(key, state, limit, now_us, t_us, first, units): take out `units` stamps from index `first`.

-- Returns the state's time, how many stamps have left the window by then, and the oldest in view,
-- where that is known.
local function advance(key, state, limit, now_us)
  if state.count == 0 then return now_us, 0 end
  local t_us = math.max(now_us + state.offset_us, state.newest_us)
  if state.oldest_us > t_us - limit.period_us then return t_us, 0, state.oldest_us end
  local expired, oldest_us = up_to(key, state, limit, t_us - limit.period_us)
  -- With nothing left in view the state equals none, and none has no offset.
  if expired == state.count then return now_us, expired end
  return t_us, expired, oldest_us
end

local function decide(key, state, limit, now_us, cost, charge)
  -- advance
  local quota, period_us = limit.quota, limit.period_us
  local t_us, expired, oldest_us = advance(key, state, limit, now_us)
  local count, newest_us = state.count - expired, state.newest_us

  -- decide
  local retry_us, over = 0, count + cost - quota
  if over > 0 and cost > 0 then
    -- It fits when the first `over` stamps have left.
    if cost > quota then
      retry_us = NEVER_US
    else
      local leaving_us = over == 1 and oldest_us or at(key, state, limit, expired + over - 1)
      retry_us = leaving_us + period_us - t_us
    end
  end
  if limit.min_interval_us > 0 and count > 0 and cost > 0 and retry_us ~= NEVER_US then
    retry_us = math.max(retry_us, newest_us + limit.min_interval_us - t_us)
  end

  -- store
  local allowed, stamp_us = retry_us == 0, UNCHARGED
  local counts = allowed or (limit.flags % 4 >= COUNT_DENIED and retry_us ~= NEVER_US)
  if charge and cost > 0 and counts then
    local drop = expired
    if allowed then
      stamp_us = t_us
    else
      -- As many go as come.
      drop = expired + math.min(math.max(over, 0), cost)
      if drop > expired then oldest_us = nil end
      local kept = state.count - drop
      over = kept + 2 * cost - quota
      retry_us = 0
      if over > 0 then
        -- Behind what is kept come the stamps of this refusal itself.
        local leaving_us = over <= kept and at(key, state, limit, drop + over - 1) or t_us
        retry_us = leaving_us + period_us - t_us
      end
      retry_us = math.max(retry_us, limit.min_interval_us)
    end
    write(key, state, limit, now_us, t_us, cost, drop, oldest_us)
    count, newest_us = state.count - drop + cost, t_us
  elseif t_us > now_us + state.offset_us then
    -- The clock has stepped back.
    write(key, state, limit, now_us, t_us, 0, 0, state.oldest_us)
  end

  -- reply
  local reset_us = count > 0 and newest_us + period_us - t_us or 0
  return allowed and 1 or 0, math.max(quota - count, 0), retry_us, reset_us, 0, stamp_us
end

local function corrections()
  local function refund(key, state, limit, now_us, cost, stamp_us)
    local t_us, expired = advance(key, state, limit, now_us)
    local first, back = 0, 0
    if expired < state.count and t_us - limit.period_us < stamp_us and stamp_us <= t_us then
      first = up_to(key, state, limit, stamp_us - 1)
      back = math.min(cost, up_to(key, state, limit, stamp_us) - first)
    end
    if back > 0 then
      cut(key, state, limit, now_us, t_us, first, back)
    elseif t_us > now_us + state.offset_us then
      write(key, state, limit, now_us, t_us, 0, 0, state.oldest_us)
    end
    return back
  end

  local function debit(key, state, limit, now_us, cost)
    local t_us, expired, oldest_us = advance(key, state, limit, now_us)
    local units = math.min(cost, 2 * limit.quota - (state.count - expired))
    if units > 0 then
      write(key, state, limit, now_us, t_us, units, expired, oldest_us)
    elseif t_us > now_us + state.offset_us then
      write(key, state, limit, now_us, t_us, 0, 0, state.oldest_us)
    end
  end

  local function left_us(state, limit, now_us)
    if state.count == 0 then return 0 end
    return state.newest_us + limit.period_us - now_us - state.offset_us
  end

  return {refund = refund, debit = debit, left_us = left_us}
end

return {load = load, decide = decide, corrections = corrections}
