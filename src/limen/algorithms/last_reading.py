"""Continue a state from the last answer that another store gave for the same key. Pure.

The fallback starts from this: a key that was refused a moment ago is not admitted again because
the store has become unreachable.
"""

from __future__ import annotations

from msgspec import Struct

from limen.algorithms import State
from limen.algorithms.exact_window import ExactWindow
from limen.model import Limit, Reading


class LastReading(Struct, frozen=True, gc=False):
    """An answer of the store, and its age."""

    age_us: int
    used: int
    """How many units were counted, whatever the quota is now."""
    reading: Reading
    cost: int
    """The cost that the reading is about."""

    @property
    def freed(self) -> int:
        """How many units leave the state until `retry_after_us`; 0 when it was not full."""
        allowed, remaining, retry_us, *_ = self.reading
        return max(self.cost - remaining, 0) if retry_us > 0 and not allowed else 0


def continue_from(
    state: State, limit: Limit, now_us: int, last: LastReading, free: int, freed: int
) -> None:
    """Charge a state until it has at most `free` units left at the time of the reading.

    Exact windows keep one stamp for each unit. A reading tells when the first `freed` units leave
    (`retry_after`) and when the last one does (`reset_after`); the units between are stamped like
    the last one, so that the state never frees a unit earlier than the store would. All other
    algorithms free units by their own rule from the time of the reading on.
    """
    read_us = now_us - last.age_us
    _, _, retry_us, reset_us, _, _ = last.reading
    units = state.decide(limit, read_us, 0, False)[1] - free
    if units <= 0:
        return
    if isinstance(state, ExactWindow):
        first = min(units, freed)
        for part, leaves_us in ((first, retry_us), (units - first, reset_us)):
            if part:
                stamp_us = read_us + leaves_us - limit.period_us
                state.debit(max(stamp_us, state.newest_us - state.offset_us), part)
    else:
        state.debit(read_us, units)
