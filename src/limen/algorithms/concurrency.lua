-- Concurrency. The twin of concurrency.py: same steps, same names.
--
-- State: a sorted set of leases; the score of a holder is when its lease ends. In front of them are
-- two members with negative scores: "\0n" is -newest_us, and "\0o" is -offset_us where there is one.
-- A holder's name is never one of these: it has no NUL. TTL: until the last lease ends.

local concurrency = {}

function concurrency.load(key)
  local newest = redis.call("ZSCORE", key, "\0n")
  local offset = redis.call("ZSCORE", key, "\0o")
  return {
    key = key,
    known = newest and true or false,
    newest_us = newest and -tonumber(newest) or 0,
    offset_us = offset and -tonumber(offset) or 0,
  }
end

function concurrency.decide(state, limit, now_us, holder, charge)
  -- advance
  local t_us, count = concurrency.advance(state, now_us)

  -- decide
  local held = concurrency.held(state, t_us, holder)
  local allowed = held or count < limit.quota
  local retry_us = 0
  if not allowed then
    local first = redis.call("ZRANGEBYSCORE", state.key, above(t_us), "+inf", "WITHSCORES",
      "LIMIT", 0, 1)
    retry_us = tonumber(first[2]) - t_us
  end
  local last_us = t_us
  if count > 0 then
    last_us = tonumber(redis.call("ZRANGE", state.key, -1, -1, "WITHSCORES")[2])
  end

  -- store
  if allowed and charge then
    if not held then count = count + 1 end
    state.holder, state.end_us = holder, t_us + limit.period_us
    last_us = math.max(last_us, state.end_us)
    concurrency.store(state, now_us, t_us)
  end

  -- reply
  return allowed and 1 or 0, math.max(limit.quota - count, 0), retry_us, last_us - t_us, 0,
    UNCHARGED
end

function concurrency.renew(state, limit, now_us, holder)
  local t_us = concurrency.advance(state, now_us)
  if not concurrency.held(state, t_us, holder) then return 0 end
  state.holder, state.end_us = holder, t_us + limit.period_us
  concurrency.store(state, now_us, t_us)
  return 1
end

function concurrency.release(state, limit, now_us, holder)
  local t_us = concurrency.advance(state, now_us)
  if not concurrency.held(state, t_us, holder) then return 0 end
  state.freed = holder
  concurrency.store(state, now_us, t_us)
  return 1
end

function concurrency.held(state, t_us, holder)
  local end_us = redis.call("ZSCORE", state.key, holder)
  return end_us and tonumber(end_us) > t_us or false
end

-- Changes nothing but offset_us, and that only when the clock has stepped back.
function concurrency.advance(state, now_us)
  local t_us = time_of(state, state.newest_us, now_us)
  local count = redis.call("ZCOUNT", state.key, above(t_us), "+inf")
  if count == 0 then return now_us, 0 end
  return t_us, count
end

function concurrency.store(state, now_us, t_us)
  state.t_us, state.newest_us, state.offset_us = t_us, t_us, t_us - now_us
  state.dirty = true
end

function concurrency.save(key, state, limit, now_us)
  if state.t_us then redis.call("ZREMRANGEBYSCORE", key, 0, state.t_us) end
  if state.freed then redis.call("ZREM", key, state.freed) end
  if state.holder then redis.call("ZADD", key, state.end_us, state.holder) end
  local last = redis.call("ZRANGE", key, -1, -1, "WITHSCORES")
  local last_us = last[2] and tonumber(last[2]) or -1
  if last_us < 0 then
    redis.call("DEL", key)
    return
  end
  redis.call("ZADD", key, -state.newest_us, "\0n")
  if state.offset_us > 0 then
    redis.call("ZADD", key, -state.offset_us, "\0o")
  else
    redis.call("ZREM", key, "\0o")
  end
  redis.call("PEXPIRE", key, ttl_ms(last_us - now_us - state.offset_us))
end

return concurrency
