"""Sliding counter: two fixed windows, the previous one weighted by how much of it is still in view.

Bound: less than 2 · quota in any time of one period. In even traffic the error is small; the worst
case needs a burst at the very end of one window and another when most of it has slid out of view.

The estimate is not rounded: `previous * left + current * period <= quota * period`, where `left` is
how much of the previous window the sliding one still covers. So that these products stay below
2**53, time is measured in `limit.tick_us`: 1 microsecond, or for huge quotas over long periods the
smallest power of ten that fits, with `left` rounded up.

Clock: as in `fixed_window`, the start of the window is the latest time known to have been reached.
"""

from __future__ import annotations

from msgspec import Struct

from limen.model import NEVER_US, UNCHARGED, Limit, Reading


class SlidingCounterState(Struct, gc=False):
    """What is kept for one key."""

    limit: Limit
    start_us: int = 0
    current: int = 0
    previous: int = 0
    offset_us: int = 0

    @property
    def expires_us(self) -> int:
        """When the current window has slid out of view too."""
        counted = self.current or self.previous
        return self.start_us + 2 * self.limit.period_us if counted else 0

    def decide(self, limit: Limit, now_us: int, cost: int, charge: bool) -> Reading:
        """Say whether `cost` fits beside the estimate; charge it if so and `charge` is set."""
        # advance, unless the window is still the same
        period_us, tick_us = limit.period_us, limit.tick_us
        t_us, start_us = now_us + self.offset_us, self.start_us
        current, previous = self.current, self.previous
        same = 0 <= t_us - start_us < period_us
        if not same:
            t_us, start_us, current, previous = self.advance(limit, now_us)

        # decide
        quota, retry_us, stamp_us = limit.quota, 0, UNCHARGED
        seen = current
        if previous:
            left = -((t_us - start_us - period_us) // tick_us)
            seen -= -previous * left // -(-period_us // tick_us)
        if seen + cost > quota and cost:
            retry_us = NEVER_US
            if cost <= quota:
                retry_us = earliest(limit, start_us, current, previous, cost) - t_us

        # store
        elif charge and cost:
            current += cost
            seen += cost
            self.limit = limit
            self.current = current
            stamp_us = t_us
            if not same:
                self.start_us = start_us
                self.previous = previous
                self.offset_us = t_us - now_us

        # reply
        reset_us = 0
        if current:
            reset_us = start_us + 2 * period_us - t_us
        elif previous:
            reset_us = start_us + period_us - t_us
        return retry_us == 0, quota - seen if seen < quota else 0, retry_us, reset_us, 0, stamp_us

    def refund(self, now_us: int, cost: int, stamp_us: int) -> int:
        """Give back a charge that one of the two windows still holds; return the units."""
        t_us, start_us, current, previous = self.advance(self.limit, now_us)
        if stamp_us > t_us:
            return 0
        if stamp_us >= start_us:
            back = min(cost, current)
            current -= back
        elif stamp_us >= start_us - self.limit.period_us:
            back = min(cost, previous)
            previous -= back
        else:
            return 0
        self.start_us, self.current, self.previous = start_us, current, previous
        self.offset_us = t_us - now_us
        return back

    def debit(self, now_us: int, cost: int) -> None:
        """Charge without asking, but not beyond twice the quota."""
        t_us, self.start_us, current, self.previous = self.advance(self.limit, now_us)
        self.current = max(current, min(current + cost, 2 * self.limit.quota))
        self.offset_us = t_us - now_us

    def advance(self, limit: Limit, now_us: int) -> tuple[int, int, int, int]:
        """Return the state's time, its window's start, and the counts in it and the one before.

        Changes nothing but `offset_us`, and that only when the clock has stepped back.
        """
        period_us, start_us = limit.period_us, self.start_us
        t_us = now_us + self.offset_us
        if t_us < start_us:
            self.offset_us += start_us - t_us
            t_us = start_us
        age_us = t_us - start_us
        if age_us < period_us:
            return t_us, start_us, self.current, self.previous
        if age_us < 2 * period_us:
            return t_us, start_us + period_us, 0, self.current
        return now_us, now_us - now_us % period_us, 0, 0


def earliest(limit: Limit, start_us: int, current: int, previous: int, cost: int) -> int:
    """Return when `cost` would fit, if nobody else comes. It does not now; `cost <= quota`."""
    period_us, tick_us = limit.period_us, limit.tick_us
    period = -(-period_us // tick_us)
    # In this window: previous * left <= (quota - current - cost) * period, with some of it left.
    free = limit.quota - current - cost
    if free > 0 and previous:
        left = free * period // previous
        if left > 0:
            return start_us + period_us - min(left * tick_us, period_us)
    # In the next one, where current is what was previous: current * left <= free * period.
    free = limit.quota - cost
    if current <= free:
        return start_us + period_us
    left = free * period // current
    return start_us + 2 * period_us - min(left * tick_us, period_us)
