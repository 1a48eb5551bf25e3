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

from datetime import date, timedelta

from msgspec import Struct

from limen.model import NEVER_US, UNCHARGED, Limit, Reading

_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()


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
    first = date.fromordinal(_EPOCH + day).replace(day=1)
    following = (first + timedelta(days=31)).replace(day=1)
    return (first.toordinal() - _EPOCH) * _DAY_US, (following.toordinal() - _EPOCH) * _DAY_US
