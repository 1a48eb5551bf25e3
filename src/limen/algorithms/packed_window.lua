-- Packed window: an exact window in one string. See exact_window.lua.
--
-- State: a header ">I7 I7 I7 I3 I3 I3" (oldest_us, newest_us, offset_us, start, count, capacity)
-- and a ring of `capacity` places. A place holds the low-order bytes of a stamp, as many as the
-- period needs: all stamps lie within one period of the newest, so the rest is known.
-- TTL: until the newest stamp leaves the window, and up to a sixteenth of the period longer.
--
-- The ring grows with use and ends at the quota; it is then as large as it has to be, and wraps.

local HEADER, HEADER_BYTES = ">I7I7I7I3I3I3", 30
local FIRST_PLACES = 8
local BLOCK = 8

-- The width of a place, its format, and how many stamps it can tell apart.
local function place_of(limit)
  local period_us = limit.period_us
  if period_us < 16777216 then return 3, ">I3", 16777216 end
  if period_us < 4294967296 then return 4, ">I4", 4294967296 end
  if period_us < 1099511627776 then return 5, ">I5", 1099511627776 end
  return 6, ">I6", 281474976710656
end

local function load(key)
  -- Offsets that never change are text: a number would be printed anew at each call.
  local header = redis.call("GETRANGE", key, "0", "29")
  local oldest_us, newest_us, offset_us, start, count, capacity = 0, 0, 0, 0, 0, 0
  if header ~= "" then
    oldest_us, newest_us, offset_us, start, count, capacity = struct.unpack(HEADER, header)
  end
  return {
    oldest_us = oldest_us, newest_us = newest_us, offset_us = offset_us, start = start,
    count = count, capacity = capacity,
  }
end

-- Up to `count` places from `index` on: fewer where the ring ends.
local function piece_at(key, state, width, index, count)
  local first = (state.start + index) % state.capacity
  count = math.min(count, state.capacity - first)
  local offset = HEADER_BYTES + first * width
  return redis.call("GETRANGE", key, offset, offset + count * width - 1), count
end

local function at(key, state, limit, index)
  local width, place, modulus = place_of(limit)
  local low = struct.unpack(place, (piece_at(key, state, width, index, 1)))
  return state.newest_us - (state.newest_us - low) % modulus
end

-- In steady traffic one or two have expired, so a small block is looked at first. Behind it the
-- steps double, and then the last step is halved until the border is found.
local function up_to(key, state, limit, t_us)
  local count, newest_us = state.count, state.newest_us
  if count == 0 or state.oldest_us > t_us then return 0, state.oldest_us end
  if newest_us <= t_us then return count end
  local width, place, modulus = place_of(limit)
  local piece, places = piece_at(key, state, width, 1, math.min(BLOCK, count - 1))
  for index = 1, places do
    local low = struct.unpack(place, piece, (index - 1) * width + 1)
    local stamp_us = newest_us - (newest_us - low) % modulus
    if stamp_us > t_us then return index, stamp_us end
  end
  local below, step = places, BLOCK
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

-- `count` places from `index` on, in one piece.
local function straight(key, state, width, index, count)
  if count == 0 then return "" end
  local piece, places = piece_at(key, state, width, index, count)
  if places == count then return piece end
  return piece .. piece_at(key, state, width, index + places, count - places)
end

-- Write stamps to the places from `index` on.
local function put(key, state, width, index, stamps)
  if stamps == "" then return end
  local first = (state.start + index) % state.capacity
  local room = (state.capacity - first) * width
  if #stamps > room then
    redis.call("SETRANGE", key, HEADER_BYTES, string.sub(stamps, room + 1))
    stamps = string.sub(stamps, 1, room)
  end
  redis.call("SETRANGE", key, HEADER_BYTES + first * width, stamps)
end

-- How many places to make for `count` stamps: half as many again, but no more than there may be,
-- and as many as fit into the memory that the server's allocator will set aside for them: of that
-- there are four sizes between each power of two and the next.
local function capacity_for(limit, width, count)
  local bytes = HEADER_BYTES + 6 + math.max(FIRST_PLACES, math.floor(count * 1.5)) * width
  local _, exponent = math.frexp(bytes - 1)
  local size = 2 ^ (exponent - 3)
  local places = math.floor((math.ceil(bytes / size) * size - HEADER_BYTES - 6) / width)
  return math.max(count, math.min(places, limit.quota))
end

local function write(key, state, limit, now_us, t_us, units, drop, oldest_us)
  local kept, capacity, start = state.count - drop, state.capacity, 0
  if kept == 0 then
    oldest_us = t_us
  elseif not oldest_us then
    oldest_us = at(key, state, limit, drop)
  end
  if asking then return end
  local count = kept + units
  local width, place = place_of(limit)
  local quantum_us = math.ceil(limit.period_us / 16)
  local stamps = struct.pack(place, t_us)  -- the low-order bytes
  if units ~= 1 then stamps = string.rep(stamps, units) end
  if kept == 0 or count > capacity then
    -- A new string: one that grows in place is given twice what it needs.
    capacity = capacity_for(limit, width, count)
    local header = struct.pack(HEADER, oldest_us, t_us, t_us - now_us, 0, count, capacity)
    local empty = string.rep("\0", (capacity - count) * width)
    redis.call("SET", key, header .. straight(key, state, width, drop, kept) .. stamps .. empty,
      "PX", ttl_ms(limit.period_us + quantum_us))
    return
  end
  put(key, state, width, state.count, stamps)
  start = (state.start + drop) % capacity
  redis.call("SETRANGE", key, "0",
    struct.pack(HEADER, oldest_us, t_us, t_us - now_us, start, count, capacity))
  if state.newest_us < t_us - t_us % quantum_us then
    redis.call("PEXPIRE", key, ttl_ms(limit.period_us + quantum_us))
  end
end

local function cut(key, state, limit, now_us, t_us, first, units)
  local count = state.count - units
  if count == 0 then
    if not asking then redis.call("DEL", key) end
    return
  end
  local oldest_us, newest_us, start = state.oldest_us, state.newest_us, state.start
  if first == 0 then oldest_us = at(key, state, limit, units) end
  if first == count then newest_us = at(key, state, limit, count - 1) end
  if asking then return end
  -- What lies behind the cut moves up, or what lies before it moves down: the shorter of the two.
  local width = place_of(limit)
  if first < count - first then
    put(key, state, width, units, straight(key, state, width, 0, first))
    start = (start + units) % state.capacity
  else
    put(key, state, width, first, straight(key, state, width, first + units, count - first))
  end
  redis.call("SETRANGE", key, "0",
    struct.pack(HEADER, oldest_us, newest_us, t_us - now_us, start, count, state.capacity))
end
