"""What `rolling_window` and `packed_window` have in common: every decision. Stores no stamps.

Bound: at most quota units in any time of one period, exactly, wherever that time begins.

Each unit admitted leaves a stamp. A stamp s is in view at t while s > t - period, so at s + period
it has just left. Expired stamps are dropped when the next charge is made; refusals and peeks change
nothing. `min_interval` asks for that much time since the newest stamp, whatever it cost.

Clock. The newest stamp is the latest time known to have been reached. When the clock reads less, it
has stepped back: the gap is added to `offset_us`, and time stands still for the state until the
clock moves on. So a step back frees nobody early and blocks nobody longer than one period.
"""

from __future__ import annotations

from msgspec import Struct

from limen.model import NEVER_US, UNCHARGED, Limit, Reading


class ExactWindow(Struct, gc=False):
    """What is kept for one key. How the stamps are kept, oldest first, is the subclass's."""

    limit: Limit
    count: int = 0
    oldest_us: int = 0
    newest_us: int = 0
    offset_us: int = 0

    @property
    def expires_us(self) -> int:
        """When the newest stamp leaves the window."""
        return self.newest_us + self.limit.period_us if self.count else 0

    def at(self, index: int) -> int:
        """Return the stamp at `index`, counted from the oldest."""
        raise NotImplementedError

    def up_to(self, t_us: int) -> int:
        """Return how many stamps are not later than `t_us`."""
        raise NotImplementedError

    def write(self, t_us: int, units: int, drop: int) -> None:
        """Drop the `drop` oldest stamps and add `units` stamps of `t_us`."""
        raise NotImplementedError

    def cut(self, first: int, units: int) -> None:
        """Take out `units` stamps from the one at index `first`."""
        raise NotImplementedError

    def decide(self, limit: Limit, now_us: int, cost: int, charge: bool) -> Reading:
        """Say whether `cost` fits into the window; charge it when it does and `charge` is set."""
        # advance, unless all stamps are in view
        quota, period_us = limit.quota, limit.period_us
        t_us, count, expired = now_us + self.offset_us, self.count, 0
        if t_us < self.newest_us or self.oldest_us <= t_us - period_us:
            t_us, expired = self.advance(now_us)
            count -= expired

        # decide
        retry_us, over = 0, count + cost - quota
        if over > 0 and cost:
            # It fits when the first `over` stamps have left.
            if cost > quota:
                retry_us = NEVER_US
            else:
                leaving = expired + over - 1
                retry_us = (self.at(leaving) if leaving else self.oldest_us) + period_us - t_us
        if limit.min_interval_us and count and cost and retry_us != NEVER_US:
            retry_us = max(retry_us, self.newest_us + limit.min_interval_us - t_us)

        # store
        stamp_us = UNCHARGED
        if charge and cost:
            if not retry_us:
                self.limit = limit
                stamp_us = t_us
                if expired or not count:
                    self.push(t_us, cost, expired)
                    self.offset_us = t_us - now_us
                    count += cost
                else:
                    self.write(t_us, cost, 0)
                    self.newest_us = t_us
                    count = self.count = count + cost
            elif limit.count_denied and retry_us != NEVER_US:
                # As many go as come, so that a quota that was lowered and is raised again finds
                # what was used under it.
                self.push(t_us, cost, expired + min(max(over, 0), cost))
                self.limit = limit
                self.offset_us = t_us - now_us
                count = self.count
                over = count + cost - quota
                retry_us = self.at(over - 1) + period_us - t_us if over > 0 else 0
                retry_us = max(retry_us, limit.min_interval_us)

        # reply
        return (
            retry_us == 0,
            quota - count if count < quota else 0,
            retry_us,
            self.newest_us + period_us - t_us if count else 0,
            0,
            stamp_us,
        )

    def refund(self, now_us: int, cost: int, stamp_us: int) -> int:
        """Remove the stamps of a charge that are still in view; return how many.

        Charges of the same microsecond cannot be told apart, and need not be.
        """
        t_us, expired = self.advance(now_us)
        if expired == self.count or not t_us - self.limit.period_us < stamp_us <= t_us:
            return 0
        first = self.up_to(stamp_us - 1)
        back = min(cost, self.up_to(stamp_us) - first)
        if back:
            self.cut(first, back)
            self.count -= back
            if self.count:
                self.newest_us = self.at(self.count - 1)
                self.oldest_us = self.at(0)
            else:
                self.oldest_us = self.newest_us = self.offset_us = 0
        return back

    def debit(self, now_us: int, cost: int) -> None:
        """Charge without asking, but not beyond twice the quota."""
        t_us, expired = self.advance(now_us)
        units = min(cost, 2 * self.limit.quota - (self.count - expired))
        if units > 0:
            self.push(t_us, units, expired)
            self.offset_us = t_us - now_us

    def push(self, t_us: int, units: int, drop: int) -> None:
        """Drop the `drop` oldest stamps and add `units` stamps of `t_us`."""
        kept = self.count - drop
        if not kept:
            self.oldest_us = t_us
        elif drop:
            self.oldest_us = self.at(drop)
        self.write(t_us, units, drop)
        self.count = kept + units
        self.newest_us = t_us

    def advance(self, now_us: int) -> tuple[int, int]:
        """Return the state's time, and how many of its stamps have left the window by then.

        Changes nothing but `offset_us`, and that only when the clock has stepped back.
        """
        if not self.count:
            return now_us, 0
        t_us = now_us + self.offset_us
        if t_us < self.newest_us:
            self.offset_us += self.newest_us - t_us
            t_us = self.newest_us
        expired = self.up_to(t_us - self.limit.period_us)
        # With nothing left in view the state equals none, and none has no offset.
        return (t_us, expired) if expired < self.count else (now_us, expired)
