"""Concurrency: at most `slots` holders at once, each by a lease that it renews while it lives.

Bound: never more than `slots` unexpired leases. A holder that dies without a word frees its slot
when its lease ends, and its late release or renewal touches nobody else's slot, because a lease is
known by the id its holder chose.

Clock: as elsewhere, the latest time a change was made at is kept, and a clock that reads less is
moved forward by `offset_us`. A step back lengthens leases by what it took; it never shortens one.
"""

from __future__ import annotations

from msgspec import Struct, field

from limen.model import UNCHARGED, Concurrency, Reading


class Leases(Struct, gc=False):
    """What is kept for one key."""

    limit: Concurrency
    ends_us: dict[str, int] = field(default_factory=dict)
    """When the lease of each holder ends."""
    newest_us: int = 0
    offset_us: int = 0

    @property
    def expires_us(self) -> int:
        """When the last lease ends."""
        return max(self.ends_us.values(), default=0)

    def decide(self, limit: Concurrency, now_us: int, holder: str, charge: bool) -> Reading:
        """Say whether `holder` may have a slot; take it when it may and `charge` is set.

        A holder that has one already keeps it, renewed. `retry_after_us` is a hint: the earliest
        end of a lease, though its holder may release sooner or renew.
        """
        # advance
        t_us, ends_us = self.advance(now_us)

        # decide
        allowed = holder in ends_us or len(ends_us) < limit.slots
        retry_us = 0 if allowed else min(ends_us.values()) - t_us

        # store
        if allowed and charge:
            ends_us[holder] = t_us + limit.lease_us
            self.store(limit, now_us, t_us, ends_us)

        # reply
        return (
            allowed,
            max(limit.slots - len(ends_us), 0),
            retry_us,
            max(ends_us.values(), default=t_us) - t_us,
            0,
            UNCHARGED,
        )

    def renew(self, limit: Concurrency, now_us: int, holder: str) -> bool:
        """Lengthen the lease of `holder` to a full one; False when it has none any more."""
        t_us, ends_us = self.advance(now_us)
        if holder not in ends_us:
            return False
        ends_us[holder] = t_us + limit.lease_us
        self.store(limit, now_us, t_us, ends_us)
        return True

    def release(self, now_us: int, holder: str) -> bool:
        """Free the slot of `holder`; False when it has none any more."""
        t_us, ends_us = self.advance(now_us)
        if ends_us.pop(holder, None) is None:
            return False
        self.store(self.limit, now_us, t_us, ends_us)
        return True

    def advance(self, now_us: int) -> tuple[int, dict[str, int]]:
        """Return the state's time, and the leases that have not ended by then.

        Changes nothing but `offset_us`, and that only when the clock has stepped back.
        """
        t_us = now_us + self.offset_us
        if t_us < self.newest_us:
            self.offset_us += self.newest_us - t_us
            t_us = self.newest_us
        ends_us = {holder: end_us for holder, end_us in self.ends_us.items() if end_us > t_us}
        return (t_us, ends_us) if ends_us else (now_us, ends_us)

    def store(self, limit: Concurrency, now_us: int, t_us: int, ends_us: dict[str, int]) -> None:
        """Keep the leases as they are at `t_us`."""
        self.limit = limit
        self.ends_us = ends_us
        self.newest_us = t_us
        self.offset_us = t_us - now_us
