"""The algorithms: each is a kind of state, and a pure decision over it, a limit, a time and a cost.

No I/O, no clock, no lock: whoever calls owns the state and keeps others away from it. Every state
has the same few methods, so nobody else needs to know which algorithm it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from limen.algorithms.concurrency import Leases
from limen.model import ALGORITHMS, AlgorithmName, Limit, Reading

__all__ = ["STATES", "Leases", "State"]


class State(Protocol):
    """What is kept for one key under one limit. The rest is the algorithm's own."""

    limit: Limit
    """The limit it was last written under."""
    offset_us: int
    """How far the state's time is ahead of the clock, because the clock has stepped back."""

    @property
    def expires_us(self) -> int:
        """The state's time from which on it equals no state at all."""
        ...

    def decide(self, limit: Limit, now_us: int, cost: int, charge: bool) -> Reading:
        """Say whether `cost` fits; charge it when it does and `charge` is set."""
        ...

    def refund(self, now_us: int, cost: int, stamp_us: int) -> int:
        """Give back what of a charge is still counted; return the units."""
        ...

    def debit(self, now_us: int, cost: int) -> None:
        """Charge without asking, but not beyond twice what the limit holds."""
        ...


def _state_class(name: AlgorithmName) -> Callable[[Limit], State]:
    """Return the class of an algorithm's state: `FixedWindowState` in `fixed_window.py`."""
    class_name = f"{name.title().replace('_', '')}State"
    state: Callable[[Limit], State] = getattr(import_module(f"{__name__}.{name}"), class_name)
    return state


STATES: dict[AlgorithmName, Callable[[Limit], State]] = {
    name: _state_class(name) for name in ALGORITHMS
}
"""The state of each algorithm. Made of a limit alone, it equals no state at all."""
