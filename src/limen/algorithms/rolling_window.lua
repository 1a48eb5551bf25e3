-- Rolling window: an exact window on a sorted set, one member for each unit. See exact_window.lua.
--
-- State: a sorted set. The score of a member is its stamp; its name is ">I7 I4", the stamp and a
-- number that tells units of one microsecond apart. The offset, if there is one, is the member "o"
-- with a negative score, in front of all stamps.
-- TTL: until the newest stamp leaves the window, and up to a sixteenth of the period longer.

local UNIT = ">I7I4"
local UNIT_BYTES = 11
local ZADD_AT_ONCE = 1000
-- 2^31: more than there are units in one microsecond, and far from the end of the four bytes.
local MOST_NUMBER = 2147483648

-- The stamp and the number in a unit's name.
local function unit(name)
  if #name ~= UNIT_BYTES then error(BAD_STATE, 0) end
  return struct.unpack(UNIT, name)
end

-- Where the oldest and the newest name agree with their scores, all other scores lie between.
local function load(key, _, limit)
  local count, offset_us, ahead = redis.call("ZCARD", key), 0, 0
  if count == 0 then return {count = 0, oldest_us = 0, newest_us = 0, offset_us = 0, ahead = 0} end
  local oldest = redis.call("ZRANGE", key, "0", "0", "WITHSCORES")
  if oldest[1] == "o" and count > 1 then
    offset_us, ahead, count = -tonumber(oldest[2]), 1, count - 1
    oldest = redis.call("ZRANGE", key, "1", "1", "WITHSCORES")
  end
  local newest = redis.call("ZRANGE", key, "-1", "-1", "WITHSCORES")
  local oldest_us = unit(oldest[1])
  local newest_us, number = unit(newest[1])
  if oldest_us ~= tonumber(oldest[2]) or newest_us ~= tonumber(newest[2])
    or newest_us > LATEST_US or newest_us - oldest_us >= limit.period_us or number > MOST_NUMBER
    or offset_us < 0 or offset_us % 1 ~= 0 or offset_us >= newest_us + limit.period_us then
    error(BAD_STATE, 0)
  end
  return {
    count = count, oldest_us = oldest_us, newest_us = newest_us, offset_us = offset_us,
    ahead = ahead, number = number,
  }
end

local function at(key, state, limit, index)
  local rank = state.ahead + index
  local stamp_us = unit(redis.call("ZRANGE", key, rank, rank)[1])
  if stamp_us < state.oldest_us or stamp_us > state.newest_us then error(BAD_STATE, 0) end
  return stamp_us
end

local function up_to(key, state, limit, t_us)
  return redis.call("ZCOUNT", key, 0, t_us)
end

local function add(key, t_us, number, units)
  if units == 1 then
    redis.call("ZADD", key, t_us, struct.pack(UNIT, t_us, number))
    return
  end
  for first = number, number + units - 1, ZADD_AT_ONCE do
    local members = {}
    for unit = first, math.min(first + ZADD_AT_ONCE, number + units) - 1 do
      members[#members + 1] = t_us
      members[#members + 1] = struct.pack(UNIT, t_us, unit)
    end
    redis.call("ZADD", key, unpack(members))
  end
end

local function write(key, state, limit, now_us, t_us, units, drop)
  if asking then
    pending = {write, key, state, limit, now_us, t_us, units, drop}
    return
  end
  local anew = drop == state.count
  -- All go together, and not by rank: when the clock has stepped back they may be later than now.
  if anew and drop > 0 then redis.call("DEL", key) end
  add(key, t_us, state.newest_us == t_us and state.number + 1 or 0, units)
  if drop > 0 and not anew then
    redis.call("ZREMRANGEBYRANK", key, state.ahead, state.ahead + drop - 1)
  end
  if t_us > now_us then redis.call("ZADD", key, now_us - t_us, "o") end
  local quantum_us = math.ceil(limit.period_us / 16)
  if anew or state.newest_us < t_us - t_us % quantum_us then
    redis.call("PEXPIRE", key, ttl_ms(limit.period_us + quantum_us))
  end
end

local function cut(key, state, limit, now_us, t_us, first, units)
  if units == state.count then
    redis.call("DEL", key)
    return
  end
  redis.call("ZREMRANGEBYRANK", key, state.ahead + first, state.ahead + first + units - 1)
  if t_us > now_us then redis.call("ZADD", key, now_us - t_us, "o") end
end
