"""A state made from the last answer that another store gave for the same key. Pure.

The fallback continues from it: a key that was refused a moment ago is not admitted again because
the store has become unreachable. The state never frees a unit earlier than the store would.
"""

from __future__ import annotations

from msgspec import Struct

from limen.algorithms import STATES, State
from limen.algorithms.exact_window import ExactWindow
from limen.algorithms.fixed_window import FixedWindowState
from limen.algorithms.sliding_counter import SlidingCounterState
from limen.algorithms.token_bucket import TokenBucketState
from limen.model import Limit, Reading


class LastReading(Struct, frozen=True, gc=False):
    """An answer of the store."""

    limit: Limit
    """The limit that it is about, with the quota of that time."""
    cost: int
    """The cost that it is about."""
    reading: Reading
    age_us: int


def continued(last: LastReading, limit: Limit, instances: int, now_us: int) -> State:
    """Return a state that continues from a reading, for one of several instances.

    `limit` is the instance's share of the reading's limit. If the quota has changed since, the
    state carries its use over as any other state does.
    """
    allowed, remaining, retry_us, reset_us, _, _ = last.reading
    read_us = now_us - last.age_us
    used = max(limit.capacity - _part(remaining, instances), 0)
    state = STATES[limit.algorithm](limit)
    if not reset_us:
        return state
    if isinstance(state, ExactWindow):
        # A reading tells when the first units leave, and when the last one does. The units between
        # are stamped like the last one.
        over = 0 if allowed or retry_us <= 0 else last.cost - remaining
        first = min(used, _part(max(over, 0), instances))
        for units, leaves_us in ((first, retry_us), (used - first, reset_us)):
            if units:
                state.push(read_us + leaves_us - limit.period_us, units, 0)
    elif isinstance(state, TokenBucketState):
        state.arrival_us, state.newest_us = read_us + reset_us, read_us
    elif isinstance(state, FixedWindowState):
        state.end_us, state.count = read_us + reset_us, used
        state.start_us = state.end_us - limit.period_us if limit.period_us else read_us
    elif isinstance(state, SlidingCounterState):
        _continue_counter(state, limit, read_us, reset_us, used)
    return state


def stamp_in(state: object, stamp_us: int) -> int:
    """Return the stamp by which a continued state finds a charge that a local state has, too.

    Both were charged at the same time, and that is the stamp. In a bucket it is a position, which
    differs between the two: there, a correction changes the newest charge.
    """
    return state.arrival_us + state.shift_us if isinstance(state, TokenBucketState) else stamp_us


def _continue_counter(
    state: SlidingCounterState, limit: Limit, read_us: int, reset_us: int, used: int
) -> None:
    """Continue a sliding counter. A reading does not tell its two counts, only their sum."""
    period_us = limit.period_us
    if reset_us > period_us:
        # All in the current window, where units stay the longest.
        state.start_us, state.current = read_us + reset_us - 2 * period_us, used
    else:
        # All in the previous window, of which the part `reset_us / period_us` is still in view.
        state.start_us = read_us + reset_us - period_us
        state.previous = -(-used * period_us // reset_us)


def _part(units: int, instances: int) -> int:
    return -(-units // instances)
