-- What every call begins with. All numbers are whole and below 2^53.
--
-- An algorithm is a table of functions, put together from the files of this folder:
--   load(key, what, limit): what is kept. `what` is the cost, or the holder of a slot;
--   decide(key, kept, limit, now_us, what, charge): writes what is to be kept, and returns
--     allowed, remaining, retry_us, reset_us, delay_us, stamp_us;
--   corrections(): a table with refund(key, kept, limit, now_us, cost, stamp_us), which returns
--     the units, debit(key, kept, limit, now_us, cost), and left_us(kept, limit, now_us), how long
--     there is anything to correct. For slots, renew and release stand in its place.
--
-- A key may hold a value of the right type that limen did not write. So every state is validated
-- when it is read, before the first write: its length, and the ranges that all calculations rely on.
-- A value outside them raises BAD_STATE, and the key keeps it. Valid are all states that any limit
-- of the same key may have written, at any time: a quota may have been larger, and the clock of the
-- server may have been ahead. But no time is later than LATEST_US, 2^52 (the year 2112), so that
-- sums of two times are exact.

local NEVER_US = -1
local UNCHARGED = -1
local ENFORCE = 1
local COUNT_DENIED = 2
local CALENDAR_DAY = 4
local FROM_FIRST = 8
local SLOTS = 16
local LATEST_US = 4503599627370496
local LONGEST_US = 315360000000000
local MOST_UNITS = 2000000000
local BAD_STATE = "BADSTATE the value is not a state of this limit"

-- While the checks of a request are asked, nothing is written. What a check would write is pending:
-- a function, and what to call it with: at most eight things, and none of them nil.
local asking, pending = false, false

-- A TTL is rounded up, with a margin because keys expire by a coarser clock.
local function ttl_ms(left_us)
  return (left_us + -left_us % 1000) / 1000 + TTL_MARGIN_MS
end
