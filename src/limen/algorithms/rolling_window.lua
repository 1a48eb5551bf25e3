-- Rolling window: an exact window on a sorted set, one member for each unit. See exact_window.lua.
--
-- State: a sorted set. The score of a member is its stamp; its name is ">I7 I4", the stamp and a
-- number that tells units of one microsecond apart. The offset, if there is one, is the member "o"
-- with a negative score, in front of all stamps. TTL: until the newest stamp leaves the window.

local rolling = exact_window()({})
local UNIT = ">I7I4"
local ZADD_AT_ONCE = 1000

function rolling.load(key)
  local state = {key = key, count = redis.call("ZCARD", key), offset_us = 0, ahead = 0}
  state.oldest_us, state.newest_us = 0, 0
  if state.count == 0 then return state end
  state.known = true
  local first = redis.call("ZRANGE", key, 0, 0, "WITHSCORES")
  if first[1] == "o" then
    state.offset_us, state.ahead = -tonumber(first[2]), 1
    state.count = state.count - 1
    if state.count == 0 then return state end
    first = redis.call("ZRANGE", key, 1, 1, "WITHSCORES")
  end
  state.oldest_us = tonumber(first[2])
  local last = redis.call("ZRANGE", key, -1, -1, "WITHSCORES")
  state.newest_us = tonumber(last[2])
  state.newest_name = last[1]
  return state
end

function rolling.at(state, index)
  local rank = state.ahead + index
  return tonumber(redis.call("ZRANGE", state.key, rank, rank, "WITHSCORES")[2])
end

function rolling.up_to(state, t_us)
  return redis.call("ZCOUNT", state.key, 0, t_us)
end

function rolling.save(key, state, limit, now_us)
  local left_us = rolling.left_us(state, limit, now_us)
  if left_us <= 0 then
    redis.call("DEL", key)
    return
  end
  if state.cut_units then
    local rank = state.ahead + state.cut_first
    redis.call("ZREMRANGEBYRANK", key, rank, rank + state.cut_units - 1)
  end
  if state.units then
    if state.drop > 0 then
      redis.call("ZREMRANGEBYRANK", key, state.ahead, state.ahead + state.drop - 1)
    end
    local number = 0
    if state.before > 0 and state.last_us == state.t_us then
      local _, newest = struct.unpack(UNIT, state.newest_name)
      number = newest + 1
    end
    local done = 0
    while done < state.units do
      local members = {}
      for index = done, math.min(done + ZADD_AT_ONCE, state.units) - 1 do
        members[#members + 1] = state.t_us
        members[#members + 1] = struct.pack(UNIT, state.t_us, number + index)
      end
      redis.call("ZADD", key, unpack(members))
      done = done + ZADD_AT_ONCE
    end
  end
  if state.offset_us > 0 then
    redis.call("ZADD", key, -state.offset_us, "o")
  elseif state.ahead == 1 then
    redis.call("ZREM", key, "o")
  end
  redis.call("PEXPIRE", key, ttl_ms(left_us))
end

return rolling
