"""Clients that ask on and on, while something happens to whom they ask."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Self

from tests.waiting import wait_until


class Load:
    """Threads that ask until it is over; each is told whether it keeps its connection.

    `ask` asks on one connection until `is_over`, or until it has had enough of it, and tells
    `count` what it was answered. Whatever it raises is a failed request.
    """

    def __init__(
        self, ask: Callable[[Load, bool], None], keeping: int, changing: int, steps: int
    ) -> None:
        self._ask = ask
        self._steps = steps
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        self.failures: list[str] = []
        kinds = [True] * keeping + [False] * changing
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in kinds]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.total > 100 or bool(self.failures))
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @property
    def total(self) -> int:
        return sum(self.asked.values())

    def goes_on(self) -> None:
        """Wait until many more have been answered."""
        before = self.total
        wait_until(lambda: self.total > before + self._steps or bool(self.failures), 60)

    def count(self, names: Iterable[str], allowed: bool) -> None:
        with self._lock:
            for name in names:
                self.asked[name] += 1
                self.allowed[name] += allowed

    def _run(self, keeps: bool) -> None:
        while not self.is_over:
            try:
                self._ask(self, keeps)
            except Exception as error:  # whatever it is, it is a failed request
                self.failures.append(repr(error))
                return
