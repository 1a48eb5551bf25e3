-- What every call begins with. All numbers are whole and below 2^53.

local NEVER_US = -1
local UNCHARGED = -1
local ENFORCE = 1
local COUNT_DENIED = 2
local CALENDAR_DAY = 4
local SLOTS = 8

-- While a request is only asked what it would do, nothing is written.
local asking = false

-- A TTL is rounded up, with a margin because keys expire by a coarser clock.
local function ttl_ms(left_us)
  return (left_us + -left_us % 1000) / 1000 + TTL_MARGIN_MS
end
