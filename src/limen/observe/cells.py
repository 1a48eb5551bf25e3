"""Plain counters, one cell for each rule or limit. All that a decision pays for being counted.

Threads lose no count: CPython lets another one in at calls and at the ends of loops, and there is
neither between reading a number and writing it back. Knows no keys.
"""

from __future__ import annotations

from limen.model import Concurrency, Limit

OTHERS = "(others)"
"""Under which name is counted what came when there were too many names."""
MOST_NAMES = 1_000
_MOST_LIMITS = 4_096


class Cell:
    """How often one rule decided, and how."""

    __slots__ = ("allowed", "degraded", "denied", "shadow_denied")

    def __init__(self) -> None:
        self.allowed: int = 0
        self.denied: int = 0
        self.shadow_denied: int = 0
        """A shadow would have refused."""
        self.degraded: int = 0
        """Decided without the store, whichever way."""

    @property
    def counts(self) -> list[int]:
        """The four numbers, in the order of their names above."""
        return [self.allowed, self.denied, self.shadow_denied, self.degraded]


class Cells:
    """The cells of all rules. At most `MOST_NAMES` have one of their own."""

    def __init__(self) -> None:
        self._by_name: dict[str, Cell] = {}
        self.others: Cell = Cell()
        """What is counted for all who have no cell of their own."""
        # By the id of a limit, which is kept alive beside: to hash the limit itself takes longer.
        self._by_limit: dict[int, tuple[Limit | Concurrency, Cell]] = {}

    def named(self, name: str) -> Cell:
        """Return the cell of a rule."""
        cell = self.others if name == OTHERS else self._by_name.get(name)
        if cell is None:
            is_full = len(self._by_name) >= MOST_NAMES
            cell = self.others if is_full else self._by_name.setdefault(name, Cell())
        return cell

    def of(self, limit: Limit | Concurrency) -> Cell:
        """Return the cell of a limit."""
        found = self._by_limit.get(id(limit))
        return found[1] if found is not None else self._meet(limit)

    def _meet(self, limit: Limit | Concurrency) -> Cell:
        cell = self.named(name_of(limit))
        if len(self._by_limit) >= _MOST_LIMITS:
            # A program that makes its limits anew for each call.
            self._by_limit = {}
        self._by_limit[id(limit)] = (limit, cell)
        return cell

    def forget(self, others_than: set[str]) -> None:
        """Make room: forget rules that are not there any more."""
        kept = {name: cell for name, cell in list(self._by_name.items()) if name in others_than}
        self._by_name = kept
        self._by_limit = {}

    @property
    def counts(self) -> dict[str, list[int]]:
        """How often each rule decided, and how."""
        found = {name: cell.counts for name, cell in list(self._by_name.items())}
        if any(self.others.counts):
            found[OTHERS] = self.others.counts
        return found


def name_of(limit: Limit | Concurrency) -> str:
    """Return what a limit is counted under: its rule, its name, or else its text. Valid UTF-8."""
    name = str(limit) if limit.name is None else limit.name.partition("#")[0]
    return name.encode("utf-8", "backslashreplace").decode()
