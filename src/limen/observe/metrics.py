"""`Metrics`: an observer that counts decisions, for a program's own registry of metrics.

Counts in plain numbers as decisions are made, and is read when somebody looks. Knows no registry:
`limen.observe.prometheus` has what plugs it into one.
"""

from __future__ import annotations

import time
from typing import Protocol, TypeVar

from limen.backends import Shard
from limen.model import Concurrency, Decision, Limit
from limen.observe.cells import Cell, Cells
from limen.observe.figures import Figures, merged, servers_of


class Watched(Protocol):
    """What there is to tell of a limiter, of either kind."""

    @property
    def shards(self) -> tuple[Shard, ...]:
        """How each server of its store is doing."""
        ...

    @property
    def tables(self) -> dict[str, int]:
        """How many entries it holds in this process."""
        ...

    @property
    def lost_refunds(self) -> int:
        """How many reservations could not be given back."""
        ...


W = TypeVar("W", bound=Watched)


class Metrics:
    """Counts the decisions of one or several limiters.

    ```python
    metrics = Metrics()
    limiter = metrics.watch(Limiter("redis://localhost:6379", observers=[metrics]))
    prometheus_client.REGISTRY.register(LimenCollector(metrics))
    ```
    """

    def __init__(self) -> None:
        self._cells = Cells()
        self._fallback: dict[str, list[int]] = {}
        self._watched: list[Watched] = []
        # As one value, so that no thread sees half of it. Most programs have few limits, and to
        # look a cell up takes as long as to count in it.
        self._last: tuple[Limit | Concurrency | None, Cell] = (None, Cell())

    def __call__(self, decision: Decision) -> None:
        """Count a decision."""
        if decision.several:
            self._add_several(decision)
            return
        limit, cell = self._last
        if limit is not decision.limit:
            limit = decision.limit
            cell = self._cells.of(limit)
            self._last = (limit, cell)
        if decision.source != "store":
            cell.degraded += 1
            self._add_fallback(decision)
        elif decision.allowed:
            cell.allowed += 1
        else:
            cell.denied += 1

    def _add_several(self, decision: Decision) -> None:
        """Count the decision of several limits: each that refused; or, if none did, all."""
        is_degraded = False
        for part in decision.several:
            if part.source != "store":
                is_degraded = True
            if part.allowed and not decision.allowed:
                continue  # another limit refused, and this one counted nothing
            cell = self._cells.of(part.limit)
            if part.source != "store":
                cell.degraded += 1
            elif not part.allowed:
                if part.enforce:
                    cell.denied += 1
                else:
                    cell.shadow_denied += 1
            else:
                cell.allowed += 1
        if is_degraded:
            self._add_fallback(decision)

    def _add_fallback(self, decision: Decision) -> None:
        self._fallback.setdefault(decision.source, [0, 0])[not decision.allowed] += 1

    def watch(self, limiter: W) -> W:
        """Tell of the servers and tables of a limiter too; returns it."""
        self._watched.append(limiter)
        return limiter

    def figures(self) -> Figures:
        """Return all numbers as they are now."""
        now = time.time()
        parts = [
            Figures(
                "",
                now,
                servers=servers_of(limiter.shards),
                tables=limiter.tables,
                lost_refunds=limiter.lost_refunds,
            )
            for limiter in self._watched
        ]
        fallback = {source: list(counts) for source, counts in self._fallback.items()}
        own = Figures("", now, decisions=self._cells.counts, fallback=fallback)
        return merged([own, *parts], now)
