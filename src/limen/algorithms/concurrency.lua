-- Concurrency. The twin of concurrency.py: same steps, same names.
--
-- State: a sorted set of leases; the score of a holder is when its lease ends. In front of them are
-- two members with negative scores: "\0n" is -newest_us, and "\0o" -offset_us where there is one. A
-- holder's name is never one of these: it has no NUL. TTL: until the last lease ends.

-- What is known of the clock, and when the holder's own lease ends.
local function load(key, holder)
  local scores = redis.call("ZMSCORE", key, "\0n", "\0o", holder)
  local newest_us, offset_us = scores[1] and -scores[1] or 0, scores[2] and -scores[2] or 0
  local end_us = scores[3] and tonumber(scores[3]) or 0
  if newest_us == 0 and redis.call("EXISTS", key) == 1 or newest_us % 1 ~= 0 or newest_us < 0
    or newest_us > LATEST_US or offset_us % 1 ~= 0 or offset_us < 0 or offset_us > newest_us
    or end_us % 1 ~= 0 then
    error(BAD_STATE, 0)
  end
  return {newest_us = newest_us, offset_us = offset_us, end_us = end_us}
end

-- The lower end of a range of scores that does not contain `t_us` itself.
local function above(t_us)
  return string.format("(%.0f", t_us)
end

-- When the lease at `rank`, counted from the end, does end.
local function end_at(key, rank)
  local end_us = tonumber(redis.call("ZRANGE", key, rank, rank, "WITHSCORES")[2])
  if end_us % 1 ~= 0 then error(BAD_STATE, 0) end
  return end_us
end

-- Returns the state's time, how many leases have not ended by then, and when the last one will.
local function advance(key, state, now_us)
  if state.newest_us == 0 then return now_us, 0, now_us end
  local t_us = math.max(now_us + state.offset_us, state.newest_us)
  local last_us = end_at(key, "-1")
  if last_us <= 0 or last_us > state.newest_us + LONGEST_US then error(BAD_STATE, 0) end
  -- With no lease left the state equals none, and none has no offset.
  if last_us <= t_us then
    -- After a step back of the clock, leases that have ended may be later than now.
    state.end_us, state.ended = 0, true
    return now_us, 0, now_us
  end
  return t_us, redis.call("ZCOUNT", key, above(t_us), "+inf"), last_us
end

-- Keep the leases as they are at `t_us`; the last of them ends at `last_us`.
local function save(key, state, now_us, t_us, last_us)
  redis.call("ZREMRANGEBYSCORE", key, "0", t_us)
  redis.call("ZADD", key, -t_us, "\0n")
  if t_us > now_us then
    redis.call("ZADD", key, now_us - t_us, "\0o")
  elseif state.offset_us > 0 then
    redis.call("ZREM", key, "\0o")
  end
  redis.call("PEXPIRE", key, ttl_ms(last_us - t_us))
end

-- When the clock has stepped back, its gap is kept also where nothing else changes.
local function save_step(key, state, now_us, t_us)
  if t_us <= now_us + state.offset_us then return end
  if asking then
    pending = {save_step, key, state, now_us, t_us}
    return
  end
  redis.call("ZADD", key, now_us - t_us, "\0o")
end

local function take(key, state, now_us, t_us, holder, end_us, last_us)
  if asking then
    pending = {take, key, state, now_us, t_us, holder, end_us, last_us}
    return
  end
  if state.ended then redis.call("DEL", key) end
  redis.call("ZADD", key, end_us, holder)
  save(key, state, now_us, t_us, last_us)
end

-- The end of the last lease, once the holder's own ends at `end_us`.
local function last_with(key, state, last_us, end_us)
  -- It may have been the last one itself, and be shorter now.
  if state.end_us == last_us and end_us < last_us then last_us = end_at(key, "-2") end
  return math.max(last_us, end_us)
end

local function decide(key, state, limit, now_us, holder, charge)
  -- advance
  local t_us, count, last_us = advance(key, state, now_us)

  -- decide
  local held = state.end_us > t_us
  local allowed = held or count < limit.quota
  local retry_us = 0
  if not allowed then
    local first = redis.call("ZRANGEBYSCORE", key, above(t_us), "+inf", "WITHSCORES",
      "LIMIT", "0", "1")
    retry_us = tonumber(first[2]) - t_us
    if retry_us % 1 ~= 0 then error(BAD_STATE, 0) end
  end

  -- store
  if allowed and charge then
    if not held then count = count + 1 end
    local end_us = t_us + limit.period_us
    last_us = last_with(key, state, last_us, end_us)
    take(key, state, now_us, t_us, holder, end_us, last_us)
  else
    save_step(key, state, now_us, t_us)
  end

  -- reply
  return allowed and 1 or 0, math.max(limit.quota - count, 0), retry_us, last_us - t_us, 0,
    UNCHARGED
end

local function renew(key, state, limit, now_us, holder)
  local t_us, _, last_us = advance(key, state, now_us)
  if state.end_us <= t_us then
    save_step(key, state, now_us, t_us)
    return 0
  end
  local end_us = t_us + limit.period_us
  take(key, state, now_us, t_us, holder, end_us, last_with(key, state, last_us, end_us))
  return 1
end

local function release(key, state, limit, now_us, holder)
  local t_us, count, last_us = advance(key, state, now_us)
  if state.end_us <= t_us then
    save_step(key, state, now_us, t_us)
    return 0
  end
  if count == 1 then
    redis.call("DEL", key)
  else
    last_us = last_with(key, state, last_us, 0)
    redis.call("ZREM", key, holder)
    save(key, state, now_us, t_us, last_us)
  end
  return 1
end

return {load = load, decide = decide, renew = renew, release = release}
