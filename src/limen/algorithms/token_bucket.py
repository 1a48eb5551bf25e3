"""Token bucket: up to `capacity` at once, refilled at quota ÷ period. Owns the bucket arithmetic.

Bound: in any time W, at most capacity + W · quota / period units.

The state is not the number of tokens but the *arrival time*: the moment at which all that was used
so far will have drained, that is, when the bucket is full again. Used at time t is what is left
until then; a request moves it further away by its own drain time. It changes only when something
is charged, so refusals write nothing.

Exactness. A unit drains in period / quota microseconds, which is rarely whole (97 a second). Times
are pairs: whole microseconds, and a remainder counted in 1/quota of a microsecond. No rounding
happens anywhere, so 97 a second is 97 a second for ever.

Receipts. Usage drains in the order it came, so a charge lies on a line between where it begins and
where it ends to drain, and a refund gives back what of it lies ahead. That pulls in what lies
behind it. `shift_us` is by how much in all, and the end that a receipt names is arrival plus shift,
as if nothing had been pulled in. So a refund may be too small, by later ones that came back before
it, and is never too large. A shift of more than 71 years starts again from zero: receipts from
shortly before name ends that are too late, and give back nothing.

Carry-over. The state keeps the limit it was written under. When the quota has changed since, what
was used stays used: the time left is scaled by old quota / new quota.

Clock. `newest_us` is the latest time a charge was made at. When the clock reads less than that,
it has stepped back: the gap is added to `offset_us` and time stands still for the state until the
clock moves on. So a step back never refills, and never blocks longer than the drain time.
"""

from __future__ import annotations

from msgspec import Struct

from limen.model import NEVER_US, UNCHARGED, Limit, Reading

_FAR_US = 2**52
"""Nothing drains later than this: a debt carried over to a tiny quota would pass 2**53."""
_MOST_SHIFT_US = 2**51
"""With a larger shift, sums of times would pass 2**53."""


class TokenBucketState(Struct, gc=False):
    """What is kept for one key."""

    limit: Limit
    arrival_us: int = 0
    arrival_rem: int = 0
    shift_us: int = 0
    newest_us: int = 0
    offset_us: int = 0

    @property
    def expires_us(self) -> int:
        """When the bucket is full again, and every end that a receipt names has passed."""
        return self.arrival_us + self.shift_us + (1 if self.arrival_rem else 0)

    def decide(self, limit: Limit, now_us: int, cost: int, charge: bool) -> Reading:
        """Say whether `cost` fits; charge it when it does and `charge` is set."""
        # advance, unless it only drained on
        t_us = now_us + self.offset_us
        used_us, used_rem = self.arrival_us - t_us, self.arrival_rem
        same = used_us > 0 and t_us >= self.newest_us and self.limit is limit
        if not same:
            t_us, used_us, used_rem = self.advance(limit, now_us, charge)

        # decide
        interval_us, interval_rem, fill_us = limit.interval_us, limit.interval_rem, limit.fill_us
        if cost == 1:
            after_us, after_rem = used_us + interval_us, used_rem + interval_rem
        else:
            cost_us, cost_rem = drain_time(limit, cost)
            after_us, after_rem = used_us + cost_us, used_rem + cost_rem
        over_us = after_us - fill_us
        if after_rem:
            if after_rem >= limit.quota:
                after_us, after_rem, over_us = after_us + 1, after_rem - limit.quota, over_us + 1
            if after_rem > limit.fill_rem:
                over_us += 1
        drained_us = used_us + 1 if used_rem else used_us
        delay_us = 0
        if limit.max_delay_us >= 0:
            delay_us = drained_us if cost else 0
            late_us = delay_us - limit.max_delay_us
        else:
            late_us = 0
        if over_us > 0 or late_us > 0:
            if cost == 1:
                # Where not even one fits, there is nothing to calculate.
                remaining = 0 if over_us > 0 else units_left(limit, used_us, used_rem)
                retry_us = over_us if over_us > late_us else late_us
                return False, remaining, retry_us, drained_us, 0, UNCHARGED
            if cost:
                remaining = units_left(limit, used_us, used_rem)
                retry_us = max(over_us, late_us) if cost <= limit.capacity else NEVER_US
                return False, remaining, retry_us, drained_us, 0, UNCHARGED

        # store
        stamp_us = UNCHARGED
        if charge and cost:
            used_us, used_rem, drained_us = after_us, after_rem, after_us
            if same:
                self.arrival_us = t_us + used_us
                self.arrival_rem = used_rem
                self.newest_us = t_us
            else:
                self.store(limit, now_us, t_us, used_us, used_rem)
            stamp_us = self.arrival_us + self.shift_us
            if used_rem:
                drained_us += 1

        # reply
        if used_rem or interval_rem:
            remaining = units_left(limit, used_us, used_rem)
        else:
            remaining = (fill_us - used_us) // interval_us
        return True, remaining if remaining > 0 else 0, 0, drained_us, delay_us, stamp_us

    def refund(self, now_us: int, cost: int, stamp_us: int) -> int:
        """Give back what of a charge has not drained yet; return the units, rounded up.

        So a refund leaves what would be there had the request never come, and an old receipt
        cannot eat into newer charges. A stamp is cut to whole microseconds; of the newest charge
        the rest is known.
        """
        limit = self.limit
        end_us = self.arrival_us + self.shift_us
        t_us, used_us, used_rem = self.advance(limit, now_us, True)
        if stamp_us > end_us:
            return 0  # of a state that is no more
        left = (stamp_us - self.shift_us - t_us, self.arrival_rem if stamp_us == end_us else 0)
        back_us, back_rem = min(drain_time(limit, cost), left, (used_us, used_rem))
        if (back_us, back_rem) <= (0, 0):
            return 0
        used_us, used_rem = used_us - back_us, used_rem - back_rem
        if used_rem < 0:
            used_us -= 1
            used_rem += limit.quota
        if stamp_us < end_us:
            self.shift_us = _shifted(self.shift_us, back_us + (1 if back_rem else 0))
        self.store(limit, now_us, t_us, used_us, used_rem)
        return -(-(back_us * limit.quota + back_rem) // limit.period_us)

    def debit(self, now_us: int, cost: int) -> None:
        """Charge without asking, into debt if need be, but not beyond twice the capacity."""
        limit = self.limit
        t_us, used_us, used_rem = self.advance(limit, now_us, True)
        cost_us, cost_rem = drain_time(limit, cost)
        after_us, after_rem = used_us + cost_us, used_rem + cost_rem
        if after_rem >= limit.quota:
            after_us += 1
            after_rem -= limit.quota
        most = max(drain_time(limit, 2 * limit.capacity), (used_us, used_rem))
        self.store(limit, now_us, t_us, *min((after_us, after_rem), most, (_FAR_US, 0)))

    def advance(self, limit: Limit, now_us: int, charge: bool) -> tuple[int, int, int]:
        """Return the state's time and what is in use at it, as drain time under `limit`.

        Changes the state when the clock has stepped back; and, unless it is a peek, when the quota
        has changed: from then on it drains at the new rate, also if this request is refused.
        """
        t_us = now_us + self.offset_us
        if t_us < self.newest_us:
            self.offset_us += self.newest_us - t_us
            t_us = self.newest_us
        used_us, used_rem = self.arrival_us - t_us, self.arrival_rem
        if used_us < 0 or (used_us == 0 and not used_rem):
            if self.expires_us > t_us:
                return t_us, 0, 0
            if charge:
                self.arrival_us = self.arrival_rem = self.shift_us = 0
                self.newest_us = self.offset_us = 0
            return now_us, 0, 0
        written = self.limit
        if written is not limit and written.quota != limit.quota:
            # (used_us + used_rem / old) * old / new, in steps that each stay below 2**53.
            whole, part = divmod(used_us, limit.quota)
            carry, rem = divmod(part * written.quota + used_rem, limit.quota)
            scaled_us = min(whole * written.quota + carry, _FAR_US)
            if charge:
                # What came before is pulled in with the rest.
                self.shift_us = _shifted(self.shift_us, max(used_us + 1 - scaled_us, 0))
                self.store(limit, now_us, t_us, scaled_us, rem)
            used_us, used_rem = scaled_us, rem
        return t_us, used_us, used_rem

    def store(self, limit: Limit, now_us: int, t_us: int, used_us: int, used_rem: int) -> None:
        """Keep what is in use at `t_us`; the ends that were told before stay behind."""
        if self.arrival_us <= t_us:
            # All had drained. Where it was told to end later than now, go on from there.
            end_us = self.arrival_us + self.shift_us
            self.shift_us = end_us - t_us if end_us > t_us else 0
        self.limit = limit
        self.arrival_us = t_us + used_us
        self.arrival_rem = used_rem
        self.newest_us = t_us
        self.offset_us = t_us - now_us


def drain_time(limit: Limit, units: int) -> tuple[int, int]:
    """Return the time in which `units` drain: microseconds, and a remainder in 1/quota of one."""
    carry, rem = divmod(units * limit.interval_rem, limit.quota)
    return units * limit.interval_us + carry, rem


def units_left(limit: Limit, used_us: int, used_rem: int) -> int:
    """Return how many whole units still fit beside what is in use."""
    return max(limit.capacity + -(used_us * limit.quota + used_rem) // limit.period_us, 0)


def _shifted(shift_us: int, by_us: int) -> int:
    """Return the shift after a refund or a new quota has pulled in what lies behind."""
    shift_us += by_us
    return shift_us if shift_us <= _MOST_SHIFT_US else 0
