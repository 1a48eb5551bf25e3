-- Packed window: an exact window in one string. See exact_window.lua.
--
-- State: a header ">I7 I7 I7 I3 I3 I3" (oldest_us, newest_us, offset_us, start, count, capacity)
-- and a ring of `capacity` places. A place holds the low-order bytes of a stamp, as many as the
-- period needs: all stamps lie within one period of the newest, so the rest is known.
-- TTL: until the newest stamp leaves the window.
--
-- The ring grows with use and ends at the quota; it is then as large as it has to be, and wraps.

local packed = exact_window()({})
local HEADER, HEADER_BYTES = ">I7I7I7I3I3I3", 30
local FIRST_PLACES = 8
local PLACES = {[3] = ">I3", [4] = ">I4", [5] = ">I5", [6] = ">I6"}

local function width_of(period_us)
  if period_us < 16777216 then return 3 end
  if period_us < 4294967296 then return 4 end
  if period_us < 1099511627776 then return 5 end
  return 6
end

function packed.load(key, limit)
  local width = width_of(limit.period_us)
  -- Offsets that never change are text: a number would be printed anew at each call.
  local header = redis.call("GETRANGE", key, "0", "29")
  local known = #header == HEADER_BYTES
  local oldest_us, newest_us, offset_us, start, count, capacity = 0, 0, 0, 0, 0, 0
  if known then
    oldest_us, newest_us, offset_us, start, count, capacity = struct.unpack(HEADER, header)
  end
  return {
    key = key, known = known, dirty = false, width = width, place = PLACES[width],
    modulus = 256 ^ width, oldest_us = oldest_us, newest_us = newest_us, offset_us = offset_us,
    start = start, count = count, capacity = capacity, before = 0, drop = 0, units = false,
    t_us = 0, last_us = 0,
  }
end

local function offset_of(state, index)
  return HEADER_BYTES + (state.start + index) % state.capacity * state.width
end

function packed.at(state, index)
  local offset = offset_of(state, index)
  local low = struct.unpack(state.place,
    redis.call("GETRANGE", state.key, offset, offset + state.width - 1))
  return state.newest_us - (state.newest_us - low) % state.modulus
end

-- In steady traffic one or two have expired, so the steps begin small and double; then the last
-- step is halved until the border is found.
function packed.up_to(state, t_us)
  if state.count == 0 or state.oldest_us > t_us then return 0 end
  if state.newest_us <= t_us then return state.count end
  local below, step = 0, 1
  while below + step < state.count and packed.at(state, below + step) <= t_us do
    below, step = below + step, step * 2
  end
  local above = math.min(below + step, state.count)
  while above - below > 1 do
    local middle = math.floor((below + above) / 2)
    if packed.at(state, middle) <= t_us then below = middle else above = middle end
  end
  return above
end

-- `count` places from `index` on, in one piece.
local function straight(state, index, count)
  if count == 0 then return "" end
  local first = offset_of(state, index)
  local ring_end = HEADER_BYTES + state.capacity * state.width
  local bytes = count * state.width
  local piece = redis.call("GETRANGE", state.key, first, math.min(first + bytes, ring_end) - 1)
  if #piece < bytes then
    piece = piece .. redis.call("GETRANGE", state.key, HEADER_BYTES,
      HEADER_BYTES + bytes - #piece - 1)
  end
  return piece
end

local function header_of(state)
  return struct.pack(HEADER, state.oldest_us, state.newest_us, state.offset_us, state.start,
    state.count, state.capacity)
end

local function rebuild(state, limit, ring, least_places)
  local places = #ring / state.width
  local grown = math.min(math.max(FIRST_PLACES, math.floor(places * 1.5)), limit.quota)
  state.start, state.capacity = 0, math.max(least_places, grown)
  local empty = string.rep("\0", (state.capacity - places) * state.width)
  redis.call("SET", state.key, header_of(state) .. ring .. empty)
end

function packed.save(key, state, limit, now_us)
  local left_us = packed.left_us(state, limit, now_us)
  if left_us <= 0 then
    if state.known then redis.call("DEL", key) end
    return
  end
  if state.cut_units then
    local behind = state.cut_first + state.cut_units
    local ring = straight(state, 0, state.cut_first)
      .. straight(state, behind, state.before - behind)
    rebuild(state, limit, ring, state.count)
  elseif not state.units then
    redis.call("SETRANGE", key, "0", header_of(state))
  else
    local kept = state.before - state.drop
    local stamps = string.rep(struct.pack(state.place, state.t_us % state.modulus), state.units)
    if state.count > state.capacity then
      rebuild(state, limit, straight(state, state.drop, kept) .. stamps, state.count)
    else
      state.start = (state.start + state.drop) % state.capacity
      local offset = offset_of(state, kept)
      local room = HEADER_BYTES + state.capacity * state.width - offset
      redis.call("SETRANGE", key, offset, string.sub(stamps, 1, room))
      if #stamps > room then
        redis.call("SETRANGE", key, HEADER_BYTES, string.sub(stamps, room + 1))
      end
      redis.call("SETRANGE", key, "0", header_of(state))
    end
  end
  redis.call("PEXPIRE", key, ttl_ms(left_us))
end

return packed
