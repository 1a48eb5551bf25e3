-- Packed window: an exact window in one string. See exact_window.lua.
--
-- State: a header ">I7 I7 I7 I3 I3 I3" (oldest_us, newest_us, offset_us, start, count, capacity)
-- and a ring of `capacity` places. A place holds the low-order bytes of a stamp, as many as the
-- period needs: all stamps lie within one period of the newest, so the rest is known.
-- TTL: until the newest stamp leaves the window, and up to a sixteenth of the period longer, so
-- that it is not set anew by every charge.
--
-- The ring grows with use and ends at the quota; it is then as large as it has to be, and wraps.

local HEADER = ">I7I7I7I3I3I3"
local HEADER_BYTES = 30
local HEAD_BYTES = 542
local BLOCK = 8
local FIRST_PLACES = 8
local SHORT = 16
local DOUBLED_BYTES = 1048576

-- The width of a place, its format, and how many stamps it can tell apart.
local function place_of(limit)
  local period_us = limit.period_us
  if period_us < 16777216 then return 3, ">I3", 16777216 end
  if period_us < 4294967296 then return 4, ">I4", 4294967296 end
  if period_us < 1099511627776 then return 5, ">I5", 1099511627776 end
  if period_us < 281474976710656 then return 6, ">I6", 281474976710656 end
  return 7, ">I7", 72057594037927936
end

local function load(key, _, limit)
  -- A short ring is read along with the header. Offsets that never change are text: a number would
  -- be printed anew at each call.
  local head = redis.call("GETRANGE", key, "0", "541")
  local oldest_us, newest_us, offset_us, start, count, capacity = 0, 0, 0, 0, 0, 0
  if head ~= "" then
    local bytes = #head
    if bytes < HEADER_BYTES then error(BAD_STATE, 0) end
    if bytes == HEAD_BYTES then bytes = redis.call("STRLEN", key) end
    oldest_us, newest_us, offset_us, start, count, capacity = struct.unpack(HEADER, head)
    if bytes ~= HEADER_BYTES + capacity * place_of(limit) or start >= capacity or count == 0
      or count > capacity or newest_us > LATEST_US or newest_us < oldest_us
      or newest_us - oldest_us >= limit.period_us
      or offset_us >= newest_us + limit.period_us then
      error(BAD_STATE, 0)
    end
  end
  return {
    oldest_us = oldest_us, newest_us = newest_us, offset_us = offset_us, start = start,
    count = count, capacity = capacity, head = head,
  }
end

-- Up to `count` stamps from `index` on, and how many: fewer where the ring ends.
local function get(key, state, width, index, count)
  local first = (state.start + index) % state.capacity
  count = math.min(count, state.capacity - first)
  local offset, behind = HEADER_BYTES + first * width, HEADER_BYTES + (first + count) * width
  if behind <= #state.head then return string.sub(state.head, offset + 1, behind), count end
  return redis.call("GETRANGE", key, offset, behind - 1), count
end

-- `count` stamps from `index` on.
local function get_all(key, state, width, index, count)
  if count == 0 then return "" end
  local stamps, got = get(key, state, width, index, count)
  if got == count then return stamps end
  return stamps .. get(key, state, width, index + got, count - got)
end

local function put(key, width, capacity, place, stamps)
  place = place % capacity
  local room = (capacity - place) * width
  if #stamps > room then
    redis.call("SETRANGE", key, HEADER_BYTES, string.sub(stamps, room + 1))
    stamps = string.sub(stamps, 1, room)
  end
  redis.call("SETRANGE", key, HEADER_BYTES + place * width, stamps)
end

local function at(key, state, limit, index)
  local width, place, modulus = place_of(limit)
  local low = struct.unpack(place, (get(key, state, width, index, 1)))
  local stamp_us = state.newest_us - (state.newest_us - low) % modulus
  if stamp_us < state.oldest_us then error(BAD_STATE, 0) end
  return stamp_us
end

-- In steady traffic one or two have expired, so a small block is looked at first. Behind it the
-- steps double, and then the last step is halved until the border is found.
local function up_to(key, state, limit, t_us)
  local count, newest_us = state.count, state.newest_us
  if state.oldest_us > t_us then return 0, state.oldest_us end
  if newest_us <= t_us then return count end
  local width, place, modulus = place_of(limit)
  local stamps, got = get(key, state, width, 1, math.min(BLOCK, count - 1))
  for index = 1, got do
    local low = struct.unpack(place, stamps, (index - 1) * width + 1)
    local stamp_us = newest_us - (newest_us - low) % modulus
    if stamp_us < state.oldest_us then error(BAD_STATE, 0) end
    if stamp_us > t_us then return index, stamp_us end
  end
  local below, step = got, BLOCK
  while below + step < count and at(key, state, limit, below + step) <= t_us do
    below, step = below + step, step * 2
  end
  local above = math.min(below + step, count)
  while above - below > 1 do
    local middle = math.floor((below + above) / 2)
    if at(key, state, limit, middle) <= t_us then below = middle else above = middle end
  end
  return above
end

-- How many places to make for `count` stamps: half as many again, and what then fits into the
-- memory that the allocator sets aside, of which there are four sizes between one power of two and
-- the next. From two thirds of the quota on, the quota.
local function capacity_for(limit, width, count)
  local around = HEADER_BYTES + 6
  local bytes = around + math.max(FIRST_PLACES, math.floor(count * 1.5)) * width
  local _, exponent = math.frexp(bytes - 1)
  local size = 2 ^ (exponent - 3)
  local places = math.floor((math.ceil(bytes / size) * size - around) / width)
  if places * 1.5 > limit.quota then places = limit.quota end
  return math.max(count, places)
end

-- Lengthen the ring in place. What has wrapped to its beginning goes on behind the old end.
local function grow(key, state, width, capacity)
  local bytes = HEADER_BYTES + capacity * width
  redis.call("SETRANGE", key, bytes - 1, "\0")
  local wrapped = state.start + state.count - state.capacity
  if wrapped > 0 then
    local stamps = get(key, state, width, state.count - wrapped, wrapped)
    put(key, width, capacity, state.capacity, stamps)
  end
  -- A string that grows is given twice what it needs, up to a point. A copy of it is not.
  if bytes < DOUBLED_BYTES then redis.call("BITOP", "OR", key, key) end
end

local function write(key, state, limit, now_us, t_us, units, drop, oldest_us)
  local kept, capacity = state.count - drop, state.capacity
  if kept == 0 then
    oldest_us = t_us
  elseif not oldest_us then
    oldest_us = at(key, state, limit, drop)
  end
  if asking then
    pending = {write, key, state, limit, now_us, t_us, units, drop, oldest_us}
    return
  end
  local count, offset_us = kept + units, t_us - now_us
  local width, place = place_of(limit)
  local quantum_us = math.ceil(limit.period_us / 16)
  local due = kept == 0 or state.newest_us < t_us - t_us % quantum_us
  local stamps = struct.pack(place, t_us)  -- its low-order bytes
  if units ~= 1 then stamps = string.rep(stamps, units) end
  if (kept == 0 and capacity <= SHORT) or (drop > 0 and capacity > 8 * state.count) then
    -- It is new, or was hardly used: write as much as is needed, in one piece.
    capacity = capacity_for(limit, width, count)
    redis.call("SET", key, struct.pack(HEADER, oldest_us, t_us, offset_us, 0, count, capacity)
      .. get_all(key, state, width, drop, kept) .. stamps
      .. string.rep("\0", (capacity - count) * width), "PX", ttl_ms(limit.period_us + quantum_us))
    return
  end
  local grown = count > capacity
  if grown then
    capacity = capacity_for(limit, width, count)
    grow(key, state, width, capacity)
  end
  local start = (state.start + drop) % capacity
  local header = struct.pack(HEADER, oldest_us, t_us, offset_us, start, count, capacity)
  local offset = HEADER_BYTES + (start + kept) % capacity * width
  if not grown and offset + #stamps <= #state.head then
    -- One command, with what lies between, is quicker than two without.
    local between = string.sub(state.head, HEADER_BYTES + 1, offset)
    redis.call("SETRANGE", key, "0", header .. between .. stamps)
  else
    put(key, width, capacity, start + kept, stamps)
    redis.call("SETRANGE", key, "0", header)
  end
  if due or grown then redis.call("PEXPIRE", key, ttl_ms(limit.period_us + quantum_us)) end
end

local function cut(key, state, limit, now_us, t_us, first, units)
  local count, start, capacity = state.count - units, state.start, state.capacity
  if count == 0 then
    redis.call("DEL", key)
    return
  end
  -- Read before anything moves.
  local oldest_us = first == 0 and at(key, state, limit, units) or state.oldest_us
  local newest_us = first == count and at(key, state, limit, count - 1) or state.newest_us
  -- What lies before the cut moves up, or what lies behind it moves down: the shorter of the two.
  local width = place_of(limit)
  if first < count - first then
    if first > 0 then
      put(key, width, capacity, start + units, get_all(key, state, width, 0, first))
    end
    start = (start + units) % capacity
  elseif first < count then
    local behind = get_all(key, state, width, first + units, count - first)
    put(key, width, capacity, start + first, behind)
  end
  redis.call("SETRANGE", key, "0",
    struct.pack(HEADER, oldest_us, newest_us, t_us - now_us, start, count, capacity))
end
