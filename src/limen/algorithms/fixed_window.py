"""Fixed window: a counter that starts again at each boundary of the clock.

Bound: at most 2 · quota in any time of one period, because a full window may end where the next
begins. What it is good for: quotas that people understand by the calendar.

Windows are aligned to 1970-01-01 00:00 UTC; `month` and `calendar day` follow the UTC calendar,
computed from the same clock that counts. With `from_first`, a window begins with the first charge
that no other holds.

Clock. The start of the window is the latest time that is known to have been reached. When the clock
reads less, it has stepped back: the gap is added to `offset_us` and the window begins anew, with
its count. That is also why the state outlives its window by one period: were it forgotten at the
boundary, a clock that steps back over it would hand out the same window a second time.
"""

from __future__ import annotations

from msgspec import Struct

from limen.model import NEVER_US, UNCHARGED, Limit, Reading

_DAY_US = 86_400_000_000


class FixedWindowState(Struct, gc=False):
    """What is kept for one key."""

    limit: Limit
    start_us: int = 0
    end_us: int = 0
    count: int = 0
    offset_us: int = 0

    @property
    def expires_us(self) -> int:
        """One period after the window's end."""
        return 2 * self.end_us - self.start_us

    def decide(self, limit: Limit, now_us: int, cost: int, charge: bool) -> Reading:
        """Say whether `cost` fits into the window; charge it when it does and `charge` is set."""
        # advance, unless the window is still the same
        t_us = now_us + self.offset_us
        start_us, end_us, count = self.start_us, self.end_us, self.count
        same = start_us <= t_us < end_us
        if not same:
            t_us, start_us, end_us, count = self.advance(limit, now_us)

        # decide
        quota, retry_us, stamp_us = limit.quota, 0, UNCHARGED
        after = count + cost
        if after > quota and cost:
            retry_us = end_us - t_us if cost <= quota else NEVER_US

        # store
        elif charge and cost:
            count = self.count = after
            self.limit = limit
            stamp_us = t_us
            if not same:
                self.start_us = start_us
                self.end_us = end_us
                self.offset_us = t_us - now_us

        # reply
        return (
            retry_us == 0,
            quota - count if count < quota else 0,
            retry_us,
            end_us - t_us if count else 0,
            0,
            stamp_us,
        )

    def refund(self, now_us: int, cost: int, stamp_us: int) -> int:
        """Give back a charge made in the current window; return the units."""
        t_us, start_us, _, count = self.advance(self.limit, now_us)
        if not start_us <= stamp_us <= t_us:
            return 0
        back = min(cost, count)
        if back:
            # Else the window may be a new one, and the count that of the one before.
            self.count = count - back
        return back

    def debit(self, now_us: int, cost: int) -> None:
        """Charge without asking, but not beyond twice the quota."""
        t_us, self.start_us, self.end_us, count = self.advance(self.limit, now_us)
        self.count = max(count, min(count + cost, 2 * self.limit.quota))
        self.offset_us = t_us - now_us

    def advance(self, limit: Limit, now_us: int) -> tuple[int, int, int, int]:
        """Return the state's time, the start and end of its window, and the count in it.

        Changes nothing but `offset_us`, and that only when the clock has stepped back.
        """
        t_us = now_us + self.offset_us
        start_us, end_us = self.start_us, self.end_us
        if t_us < start_us:
            self.offset_us += start_us - t_us
            t_us = start_us
        if t_us < end_us:
            return t_us, start_us, end_us, self.count
        if t_us >= self.expires_us:
            t_us = now_us
        start_us, end_us = window_at(limit, t_us)
        return t_us, start_us, end_us, 0


def window_at(limit: Limit, t_us: int) -> tuple[int, int]:
    """Return start and end of the window that holds `t_us`."""
    if limit.from_first:
        return t_us, t_us + limit.period_us
    if limit.period_us:
        start_us = t_us - t_us % limit.period_us
        return start_us, start_us + limit.period_us
    day = t_us // _DAY_US
    if limit.period == "calendar day":
        return day * _DAY_US, (day + 1) * _DAY_US
    year, month = month_of(day)
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return first_day(year, month) * _DAY_US, first_day(*following) * _DAY_US


def month_of(day: int) -> tuple[int, int]:
    """Return year and month of a day counted from 1970-01-01, in the Gregorian calendar.

    Years are counted from March, so that the leap day is the last of its year and the lengths of
    the months repeat as 31 30 31 30 31 | 31 30 31 30 31 | 31 28: 153 days for each five months.
    """
    era, day_of_era = divmod(day + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    from_march = (5 * day_of_year + 2) // 153
    year = year_of_era + era * 400
    return (year, from_march + 3) if from_march < 10 else (year + 1, from_march - 9)


def first_day(year: int, month: int) -> int:
    """Return the first day of a month, counted from 1970-01-01."""
    if month <= 2:
        year -= 1
    era, year_of_era = divmod(year, 400)
    from_march = (month + 9) % 12
    day_of_year = (153 * from_march + 2) // 5
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468
